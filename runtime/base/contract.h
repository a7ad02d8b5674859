/* SPDX-License-Identifier: Apache-2.0 */
/* contract.h: what a function relies on and its callers see to. Builds with
   the sanitizers look, and stop at the line (script/test --asan); a module that
   is built without them contains nothing of it. */
#ifndef AMPC_CONTRACT_H
#define AMPC_CONTRACT_H

#ifdef __SANITIZE_ADDRESS__
#define CONTRACT(cond) ((cond) ? (void)0 : __builtin_unreachable())
#else
#define CONTRACT(cond) ((void)0)
#endif

#endif
