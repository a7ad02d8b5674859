/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.h: what a person reads: the terminal, and numbers with units. */
#ifndef AMPC_IR_TERMINAL_H
#define AMPC_IR_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A terminal that can erase a line: not a file, not a pipe, not TERM=dumb. */
bool terminal_redraws(int fd);
/* Cells in a row, also after the window has changed; 80 where unknown. */
int terminal_columns(int fd);
/* It redraws, and NO_COLOR is not set (https://no-color.org). */
bool terminal_colours(int fd);

/* Erases a line that was drawn with the cursor at its beginning, all rows that
   it takes. */
#define TERMINAL_ERASE "\r\033[J"

/* Each returns `text`, at most UNIT_TEXT bytes long. */
enum { UNIT_TEXT = 32 };
/* 13,330; three digits below 100. */
char *unit_count(char *text, double x);
/* 3.2 us, 2.1 ms, 4.42 s, 12 min 5 s, 3 h 20 min */
char *unit_seconds(char *text, double s);

/* ---- work that takes a while --------------------------------------------- */

/* Names the work that begins now, for a line that a terminal shows; the text is
   kept, not copied. */
void doing(const char *what);
const char *doing_now(void); /* NULL: nothing was named */

#endif
