/* SPDX-License-Identifier: Apache-2.0 */
/* portable.h: comes first in everything that `ampc --target c` writes. Macros
   that a person may set:
     AMPC_THREADS    work is shared by POSIX threads (ampc_options.threads)
     AMPC_NO_FILES   save, load and resume refuse; no file is ever opened
     AMPC_NO_MALLOC  memory comes from ampc_options.alloc alone              */
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

#ifndef __GNUC__
#error "vectors need gcc or clang"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "initial values are written for little-endian machines"
#endif
/* The same bits everywhere: compilers may neither fuse multiply-adds nor
   reorder sums. */
#if defined __FAST_MATH__
#error "-ffast-math changes results: leave it out"
#endif
#if __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2 ||                    \
    __FLT_EVAL_METHOD__ == -1
#error "floats are computed in higher precision: use -msse2 -mfpmath=sse"
#endif
#if defined __clang__
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#pragma clang diagnostic ignored "-Wunused-function" /* of headers */
#pragma clang diagnostic ignored "-Wkeyword-macro"   /* alias.h */
#elif !defined __STRICT_ANSI__ && !defined AMPC_NO_CONTRACTION
#error "use -std=c11, or -ffp-contract=off -DAMPC_NO_CONTRACTION"
#endif
#pragma GCC diagnostic ignored "-Woverlength-strings"
#if !defined __clang__ /* the analyser sees paths that cannot happen */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#endif
