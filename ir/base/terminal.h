/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.h: output for people: the terminal, and numbers with units. */
#ifndef AMPC_IR_TERMINAL_H
#define AMPC_IR_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True for a terminal that can erase a line; false for a file, a pipe or
   TERM=dumb. */
bool terminal_redraws(int fd);
/* Columns of the terminal, also after the window's size has changed; 80 if
   unknown. */
int terminal_columns(int fd);
/* True if it can erase lines and NO_COLOR is not set (https://no-color.org). */
bool terminal_colours(int fd);

/* Erases a drawn line, with all rows that it takes; the cursor is at its
   beginning. */
#define TERMINAL_ERASE "\r\033[J"

/* Each returns `text`, at most UNIT_TEXT bytes long. */
enum { UNIT_TEXT = 32 };
/* 13,330; three digits below 100. */
char *unit_count(char *text, double x);
/* 3.2 us, 2.1 ms, 4.42 s, 12 min 5 s, 3 h 20 min */
char *unit_seconds(char *text, double s);

/* ---- work that takes a while --------------------------------------------- */

/* Names the work that begins now, for the terminal's progress line; the text
   is kept, not copied. */
void doing(const char *what);
const char *doing_now(void); /* NULL: no work was named */

#endif
