/* SPDX-License-Identifier: Apache-2.0 */
/* crc.h: CRC-32 as in zip, eight bytes at a time. */
#ifndef AMPC_CRC_H
#define AMPC_CRC_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of the bytes summed in `crc` (0 at first) followed by
   p[0..n). */
uint32_t crc_add(uint32_t crc, const uint8_t *p, size_t n);

#endif
