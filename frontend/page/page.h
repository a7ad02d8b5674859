/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: HTML pages, each one file that needs nothing else. A page's script
   draws it from JSON: NAME.html and NAME.js, with look.css and page.js. */
#ifndef AMPC_FRONTEND_PAGE_H
#define AMPC_FRONTEND_PAGE_H

#include "ir/base/base.h"

/* Lines of a page; the last is NULL. */
extern const char *const page_compile[];
extern const char *const page_run[];

/* Writes the page with the JSON in it. */
void page_put(const char *const *page, const char *json, StrBuf *sb);

#endif
