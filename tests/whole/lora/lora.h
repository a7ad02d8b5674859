/* SPDX-License-Identifier: Apache-2.0 */
/* lora.h: for lora_test.c and the files of folder lora. */
#ifndef AMPC_TESTS_WHOLE_LORA_LORA_H
#define AMPC_TESTS_WHOLE_LORA_LORA_H

#include "tests/support/compiled.h"

enum { STEPS = 10, MAX_N = 64 };

#define LORA_SMALL " --loss mse --precision fp32 --target cpu:x86-64-v2"

extern const char lora_model[];
ampc_session *lora_begin(const Compiled *c);
double lora_step(const Compiled *c, ampc_session *s, int i);
void lora_ampc(int status, const char *says, const char *words);

#endif
