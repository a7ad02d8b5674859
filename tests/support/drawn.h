/* SPDX-License-Identifier: Apache-2.0 */
/* drawn.h: random numbers determined by a name and a repetition;
   models/precision/drawn.py computes the same. */
#ifndef AMPC_TESTS_SUPPORT_DRAWN_H
#define AMPC_TESTS_SUPPORT_DRAWN_H

#include <stdbool.h>
#include <stddef.h>

/* Numbers for an input or a parameter of that name: f32, or i64 if `whole`;
   the caller frees them. */
void *drawn_numbers(const char *name, int draw, size_t n, bool whole);

#endif
