/* SPDX-License-Identifier: Apache-2.0 */
/* drawn.h: numbers of a name and a draw, which models/drawn.py computes as
   well. */
#ifndef AMPC_TESTS_SUPPORT_DRAWN_H
#define AMPC_TESTS_SUPPORT_DRAWN_H

#include <stdbool.h>
#include <stddef.h>

/* As the name of an input or a parameter says: f32, or i64 if `whole`; for
   free(). */
void *drawn_numbers(const char *name, int draw, size_t n, bool whole);

#endif
