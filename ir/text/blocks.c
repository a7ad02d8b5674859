/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c: what a text holds beside graphs.

     train NAME { key = value .. }   compile options, for the command line's
                                     own reader
     policy NAME { rule .. }         autocast classes, for pass `policy`
     model NAME = onnx("FILE")       what both are of, from another file
     def NAME = onnx("FILE")         a layer from another file

   A block's entries end with their line, `;`, a comment or the closing brace;
   they are cut out here and read by whom they are for.                      */
#include "ir/text/parse_impl.h"
#include "ir/text/text.h"

#include <string.h>

enum { MAX_LINES = 256 }; /* number of lines of all blocks in a file */

/* Finds the end of an entry, without blanks before it; strings may contain
   anything.
 */
static Str cut_entry(Lexer *lx) {
    bool quoted = false;
    size_t from = lx->at, end = from;
    for (; lx->at < lx->n && lx->text[lx->at] != '\n'; lx->at++) {
        char c = lx->text[lx->at];
        if (c == '"') quoted = !quoted;
        if (!c || (!quoted && strchr("#;}", c))) break;
        if (!strchr(" \t\r", c)) end = lx->at + 1;
    }
    return intern_n(lx->text + from, end - from);
}

static Status read_entries(Lexer *lx, Arena *a, Settings *out) {
    if (!lex_is(lx, '{')) return lex_expected(lx, "'{'");
    for (;;) {
        lex_skip(lx, " \t\r\n;"); /* moves to an entry, or to the closing
                                     brace */
        Token here = lex_here(lx);
        if (lx->at == lx->n)
            return lex_fail(lx, &here, "'}' expected, found end of file");
        if (lx->text[lx->at] == '}') {
            TRY(lex_again(lx, &here, false));
            return lex_next(lx);
        }
        Str text = cut_entry(lx);
        if (!*text) return lex_fail(lx, &here, "unexpected character");
        if (out->len == MAX_LINES)
            return lex_fail(lx, &here, "more than %d entries", MAX_LINES);
        vec_push(a, out, (Setting){text, lex_loc(lx, &here)});
    }
}

Status parse_block(Lexer *lx, Module *m, Token *name) {
    Settings *to = lex_is_word(lx, "train") ? &m->settings : &m->policy;
    TRY(lex_next(lx));
    *name = lx->tok;
    if (!lex_is_plain(name)) return lex_expected(lx, "the model's name");
    TRY(lex_next(lx));
    return read_entries(lx, m->arena, to);
}

/* Functions, attributes and dimensions may be named like these words. */
static bool begins_block(const Lexer *lx) {
    Lexer ahead = *lx;
    return (lex_is_word(lx, "train") || lex_is_word(lx, "policy")) &&
           lex_next(&ahead) == OK && lex_is_plain(&ahead.tok) &&
           lex_next(&ahead) == OK && lex_is(&ahead, '{');
}

/* Reads one item at the top level of a file; skips everything except blocks
   and imports. */
static Status scan_item(Lexer *lx, Module *m, int *depth) {
    Token name;
    size_t end;
    if (!*depth && begins_block(lx)) return parse_block(lx, m, &name);
    if (!*depth && lex_is_word(lx, "model")) {
        TRY(lex_next(lx));
        TRY(lex_next(lx));
        return lex_is(lx, '=') ? lex_import(lx, &m->onnx, &end) : OK;
    }
    *depth += lex_is(lx, '{') - lex_is(lx, '}');
    return lex_next(lx);
}

void text_blocks(Arena *a, const char *file, const char *text, size_t n,
                 Module **out) {
    Diag unsaid = {0}; /* reported later */
    Lexer lx;
    int depth = 0;
    Module *m = *out = module_new(a, "");
    Status s = lex_start(&lx, &unsaid, file, text, n);
    while (s == OK && lx.tok.kind != T_EOF) {
        lx.infix = true; /* most of the text is tokens there */
        s = scan_item(&lx, m, &depth);
    }
    if (s != OK) *out = module_new(a, "");
    sb_free(&unsaid.text);
}
