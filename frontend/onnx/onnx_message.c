/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_message.c: errors and warnings of the ONNX frontend, with the file, the
   node, its op and the user's line of Python.                               */
#include <string.h>

#include "frontend/onnx/onnx.h"

const char *ox_quote(Ox *ox, const char *s) {
    StrBuf sb = {0};
    sb_put_escaped(&sb, s);
    const char *r = arena_printf(ox->a, "%s", sb.data ? sb.data : "");
    sb_free(&sb);
    return r;
}

/* The last line of the exporter's stack trace is the user's source.
   TorchScript writes "FILE(LINE): FUNCTION" first if verbose=True. */
static const char *source_line(Ox *ox, const OxNode *n) {
    Str s = ox_metadata(n->proto->metadata_props, n->proto->n_metadata_props,
                        "pkg.torch.onnx.stack_trace");
    const char *doc = n->proto->doc_string;
    if (!s && doc && strstr(doc, "): "))
        return ox_quote(ox, intern_n(doc, strcspn(doc, "\n")));
    if (!s) return NULL;
    const char *line = strrchr(s, '\n');
    line = line ? line + 1 : s;
    while (*line == ' ') line++;
    return *line ? ox_quote(ox, line) : NULL;
}

/* "Conv (opset 20): ..", and the line of Python. */
static void put_message_node(Ox *ox, const OxNode *n, const char *fmt,
                             va_list ap, StrBuf *sb) {
    sb_printf(sb, "%s", ox_quote(ox, n->type));
    if (n->version) sb_printf(sb, " (opset %d)", n->version);
    sb_puts(sb, ": ");
    sb_vprintf(sb, fmt, ap);
    const char *line = source_line(ox, n);
    if (line) sb_printf(sb, " [%s]", line);
}

static Status fail_node(Ox *ox, const OxNode *n, const char *fmt, va_list ap) {
    StrBuf sb = {0};
    put_message_node(ox, n, fmt, ap, &sb);
    Status s =
        fail(ox->d, (Loc){.file = ox->file, .node = n->name}, "%s", sb.data);
    sb_free(&sb);
    return s;
}

void ox_warn_node(Ox *ox, const OxNode *n, const char *fmt, ...) {
    va_list ap;
    StrBuf sb = {0};
    va_start(ap, fmt);
    put_message_node(ox, n, fmt, ap, &sb);
    va_end(ap);
    warn(ox->d, (Loc){.file = ox->file, .node = n->name}, "%s", sb.data);
    sb_free(&sb);
}

Status ox_fail_node(Ox *ox, const OxNode *n, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    Status s = fail_node(ox, n, fmt, ap);
    va_end(ap);
    return s;
}

static Status fail_model(Ox *ox, const char *fmt, va_list ap) {
    StrBuf sb = {0};
    sb_vprintf(&sb, fmt, ap);
    Status s = fail(ox->d, (Loc){.file = ox->file}, "%s", sb.data);
    sb_free(&sb);
    return s;
}

Status ox_fail(Ox *ox, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    Status s =
        ox->node ? fail_node(ox, ox->node, fmt, ap) : fail_model(ox, fmt, ap);
    va_end(ap);
    return s;
}

Status ox_fail_model(Ox *ox, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    Status s = fail_model(ox, fmt, ap);
    va_end(ap);
    return s;
}

static void warn_at(Ox *ox, Loc loc, const char *fmt, va_list ap) {
    StrBuf sb = {0};
    sb_vprintf(&sb, fmt, ap);
    warn(ox->d, loc, "%s", sb.data);
    sb_free(&sb);
}

void ox_warn(Ox *ox, const OxNode *n, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    warn_at(ox, (Loc){.file = ox->file, .node = n->name}, fmt, ap);
    va_end(ap);
}

void ox_warn_model(Ox *ox, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    warn_at(ox, (Loc){.file = ox->file}, fmt, ap);
    va_end(ap);
}
