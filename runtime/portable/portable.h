/* SPDX-License-Identifier: Apache-2.0 */
/* portable.h: comes first in everything that `ampc --target c` writes. Macros
   that a person may set:
     AMPC_THREADS    work is shared by POSIX threads (ampc_options.threads)
     AMPC_NO_FILES   save, load and resume refuse; no file is ever opened
     AMPC_NO_MALLOC  memory comes from ampc_options.alloc alone
     AMPC_PLAIN      no vectors and no atomics, as with compilers other than
                     gcc and clang                                           */
#ifndef AMPC_PORTABLE_H
#define AMPC_PORTABLE_H

#define AMPC_PORTABLE
#define AMPC_SIMD "runtime/cpu/simd_generic.h"
#ifndef AMPC_NO_FILES
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#elif defined AMPC_THREADS
#define _POSIX_C_SOURCE 200809L
#endif

#if defined __BYTE_ORDER__ && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "initial values are written for little-endian machines"
#endif

/* A compiler without the extensions of GNU C: vectors are arrays
   (simd_plain.h), hints are left out, and one thread calls. */
#ifndef __GNUC__
#ifndef AMPC_PLAIN
#define AMPC_PLAIN
#endif
#include <string.h>
#define __attribute__(hints)
#define __builtin_memcpy        memcpy
#define __builtin_prefetch(...) (void)0
#define __builtin_unreachable() (void)0
static inline int ampc_ctz(unsigned long long bits) {
    int n = 0;
    for (; !(bits & 1); bits >>= 1) n++;
    return n;
}
static inline int ampc_popcount(unsigned long long bits) {
    int n = 0;
    for (; bits; bits &= bits - 1) n++;
    return n;
}
#define __builtin_ctzll      ampc_ctz
#define __builtin_popcountll ampc_popcount
#ifdef __chibicc__ /* which lacks it */
#define _Static_assert(...) struct ampc_static_assert
#endif
#endif

/* The same bits everywhere: compilers may neither fuse multiply-adds nor
   reorder sums. */
#if defined __FAST_MATH__
#error "-ffast-math changes results: leave it out"
#endif
#if __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2 ||                    \
    __FLT_EVAL_METHOD__ == -1 ||                                               \
    (!defined __FLT_EVAL_METHOD__ && defined __i386__) /* tcc */
#error "floats are computed in higher precision: use -msse2 -mfpmath=sse"
#endif
#if defined __clang__
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#pragma clang diagnostic ignored "-Wunused-function" /* of headers */
#pragma clang diagnostic ignored "-Wkeyword-macro"   /* alias.h */
#elif defined __GNUC__ && !defined __STRICT_ANSI__ &&                          \
    !defined AMPC_NO_CONTRACTION
#error "use -std=c11, or -ffp-contract=off -DAMPC_NO_CONTRACTION"
#endif
#pragma GCC diagnostic ignored "-Woverlength-strings"
#pragma GCC diagnostic ignored "-Wmissing-braces" /* {0} for any vector */
#ifdef __MINGW32__ /* gcc checks for msvcrt's words; -std=c11 links C's */
#pragma GCC diagnostic ignored "-Wformat"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
#pragma GCC diagnostic ignored "-Wattributes" /* visibility */
#endif
#if !defined __clang__ /* the analyser sees paths that cannot happen */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#endif
