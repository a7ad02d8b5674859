/* SPDX-License-Identifier: Apache-2.0 */
/* crc.h: CRC-32 (that of zip), eight bytes at a time. */
#ifndef AMPC_CRC_H
#define AMPC_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Of what `crc` (0 at first) is the sum of, and the bytes behind it. */
uint32_t crc_add(uint32_t crc, const uint8_t *p, size_t n);

#endif
