/* SPDX-License-Identifier: Apache-2.0 */
/* base.h: declarations that every part of the compiler uses.

   Memory: an Arena lives as long as one compilation; its allocations are not
   freed individually. Strings that name things are interned: equal text, equal
   pointer. Failure: the user's mistakes are a Status passed up by TRY, with
   messages
   collected in Diag; our own bugs end in ASSERT (exit status 3 in ampc).    */
#ifndef AMPC_IR_GRAPH_BASE_H
#define AMPC_IR_GRAPH_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- status -------------------------------------------------------------- */

typedef enum Status {
    OK = 0,
    ERR_USER = 1,  /* the input is wrong; Diag has the message              */
    ERR_USAGE = 2, /* the command line is wrong                             */
    ERR_BUG = 3    /* ours                                                  */
} Status;

#define TRY(expr)                                                              \
    do {                                                                       \
        Status try_status_ = (expr);                                           \
        if (try_status_ != OK) return try_status_;                             \
    } while (0)

/* Works with NDEBUG, too. Calls the hook (pass name, IR dump), exits 3. */
#define ASSERT(cond)                                                           \
    ((cond) ? (void)0 : assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void assert_failed(const char *cond, const char *file, int line);
/* Called before exiting; set by the pass runner. */
typedef void AssertHook(void *ctx, FILE *out);
void assert_set_hook(AssertHook *hook, void *ctx);
/* Ends ampc with status 1 and a message. */
_Noreturn void out_of_memory(void);

#ifdef __GNUC__
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#else
#define PRINTF_LIKE(f, a)
#endif

/* ---- arena --------------------------------------------------------------- */

typedef struct Arena Arena;
Arena *arena_new(void); /* out of memory is fatal in ampc: exit 1, message  */
void arena_free(Arena *a);
void *arena_alloc(Arena *a, size_t bytes); /* zeroed, 16-byte aligned       */
void *arena_dup(Arena *a, const void *p, size_t bytes);
char *arena_printf(Arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define NEW(a, T)          ((T *)arena_alloc((a), sizeof(T)))
#define NEW_ARRAY(a, T, n) ((T *)arena_alloc_array((a), (size_t)(n), sizeof(T)))
void *arena_alloc_array(Arena *a, size_t n, size_t size); /* checks n*size  */

/* Growable array in an arena: VEC(int) v = {0}; vec_push(a, &v, 3);        */
#define VEC(T)                                                                 \
    struct {                                                                   \
        T *data;                                                               \
        int len, cap;                                                          \
    }
#define vec_push(arena, v, ...)                                                \
    (((v)->len == (v)->cap                                                     \
          ? (void)((v)->data = vec_grow((arena), (v)->data, (v)->len,          \
                                        &(v)->cap, sizeof *(v)->data))         \
          : (void)0),                                                          \
     (v)->data[(v)->len++] = (__VA_ARGS__))
void *vec_grow(Arena *a, void *data, int len, int *cap, size_t size);

/* ---- strings ------------------------------------------------------------- */

typedef const char *Str; /* interned; compare by pointer; may hold any bytes
                            but NUL                                          */
Str intern(const char *s);
Str intern_n(const char *s, size_t n);
Str internf(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Maps interned strings to numbers >= 0. hash table: open addressing, size a
   power of two */
typedef struct StrMap {
    struct StrPage *page; /* open addressing, power of two */
    int len, cap;
} StrMap;
void str_map_put(Arena *a, StrMap *m, Str key, int val);
int str_map_get(const StrMap *m, Str key); /* -1 if it is not in the map */
StrMap str_map_copy(Arena *a, const StrMap *m);

/* Growable text. */
typedef struct StrBuf {
    char *data; /* always NUL-terminated once non-NULL */
    size_t len, cap;
} StrBuf;
void sb_printf(StrBuf *sb, const char *fmt, ...) PRINTF_LIKE(2, 3);
void sb_vprintf(StrBuf *sb, const char *fmt, va_list ap);
void sb_putn(StrBuf *sb, const char *s, size_t n);
void sb_puts(StrBuf *sb, const char *s);
void sb_free(StrBuf *sb);

/* fnmatch-like: * ? [set]; matches the whole name. */
bool glob_match(const char *pattern, const char *name);
/* Matches a name or any beginning of it up to a dot or slash: `fc1` and
   `layers. ` name everything in these layers. */
bool glob_layer(const char *pattern, const char *name);

/* ---- diagnostics --------------------------------------------------------- */

/* Location of a mistake: a file and either a line or a node of the model. */
typedef struct Loc {
    Str file; /* may be NULL */
    int line; /* 1-based; 0 = none */
    int col;
    Str node;          /* model node name; may be NULL */
    bool inside;       /* computed inside a function that the node calls; not a
                          result of it */
    unsigned char amp; /* 1 + the AmpClass that the user chose; 0: the op's */
    unsigned char factors; /* AmpcFactors of f32 products (pass factors) */
    int region; /* checkpoint region, whose values backward recomputes; 0: none
                 */
    int chunk;  /* chunks of rows run one after the other (pass stream), and
                   parts of an update as early as possible (early.h); no
                   kernel belongs to two regions; 0: none */
    Str named;  /* the node's name in policy lines: `node`, else its first
                   result; set from pass policy on */
    Str does;   /* with `named`, for reports: the node's op, */
    Str layer;  /* and the layer that its parameters name; may be NULL */
    const Str
        *types; /* op types of the model's node and of the functions around it,
                   the innermost first; NULL at the end; NULL: not known */
} Loc;

typedef struct Diag {
    StrBuf text; /* every message, one a line, in order                     */
    int errors, warnings;
} Diag;

/* "file:line:col: error: ..." or "file: node 'n': error: ..."; names are
   escaped and shortened.  Always returns ERR_USER. */
Status fail(Diag *d, Loc loc, const char *fmt, ...) PRINTF_LIKE(3, 4);
void warn(Diag *d, Loc loc, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Adds a line to the message before: "file:line:col: ...". */
void fail_note(Diag *d, Loc loc, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Text of a message that may quote the user's bytes, and a line end: control
   bytes except line breaks are shown as escapes. */
void sb_put_message(StrBuf *sb, const char *fmt, va_list ap);
/* Length of a message without its place, which the caller knows. */
enum { MSG_TEXT = 256 };
/* Escapes control bytes, quotes and backslashes; at most ~120 chars.       */
void sb_put_escaped(StrBuf *sb, const char *s);
/* The same of a path: a long one lacks its beginning, "...". */
void sb_put_path(StrBuf *sb, const char *path);
/* Returns the separator before item i of a list in a message. false: enough
   items were listed; the text after the last of n then gives the number of
   the others. */
bool sb_put_next(StrBuf *sb, int i);
void sb_put_more(StrBuf *sb, int n);
/* The whole text in double quotes, with escapes that the parser understands. */
void sb_put_quoted(StrBuf *sb, const char *s);
/* The inside of a JSON string; all of one, in its quotes (NULL: an empty one);
   and "KEY":"TEXT". */
void sb_put_json(StrBuf *sb, const char *s);
void sb_put_json_string(StrBuf *sb, const char *s);
void sb_put_json_field(StrBuf *sb, const char *key, const char *text);
/* Shortest text that strtod reads back as v; as_f32: as (float)v.          */
void sb_put_double(StrBuf *sb, double v, bool as_f32);

/* ---- arithmetic on hostile numbers --------------------------------------- */

bool mul_ok(int64_t a, int64_t b, int64_t *out); /* false on overflow       */
bool add_ok(int64_t a, int64_t b, int64_t *out);

uint64_t hash_bytes(uint64_t seed, const void *p, size_t n);

/* Reads a whole regular file; NUL-terminated; *n excludes it; for free().
   NULL after a message.                                                     */
char *read_file(Diag *d, const char *path, size_t *n);

#endif
