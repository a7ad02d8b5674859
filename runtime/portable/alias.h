/* SPDX-License-Identifier: Apache-2.0 */
/* alias.h: for the kernels that `ampc --target c` writes between this file
   and unalias.h: results may share bytes with operands of another type. */
typedef float ampc_alias_f32 __attribute__((may_alias));
typedef double ampc_alias_f64 __attribute__((may_alias));
typedef int64_t ampc_alias_i64 __attribute__((may_alias));
typedef int32_t ampc_alias_i32 __attribute__((may_alias));
typedef int16_t ampc_alias_i16 __attribute__((may_alias));
typedef uint64_t ampc_alias_u64 __attribute__((may_alias));
typedef uint32_t ampc_alias_u32 __attribute__((may_alias));
typedef uint16_t ampc_alias_u16 __attribute__((may_alias));
#define float ampc_alias_f32
#define double ampc_alias_f64
#define int64_t  ampc_alias_i64
#define int32_t  ampc_alias_i32
#define int16_t  ampc_alias_i16
#define uint64_t ampc_alias_u64
#define uint32_t ampc_alias_u32
#define uint16_t ampc_alias_u16
