/* SPDX-License-Identifier: Apache-2.0 */
/* unalias.h: see alias.h. */
#undef float
#undef double
#undef int64_t
#undef int32_t
#undef int16_t
#undef uint64_t
#undef uint32_t
#undef uint16_t
