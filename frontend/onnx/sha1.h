/* sha1.h: SHA-1, for the checksum key of external ONNX data. */
#ifndef AMPC_FRONTEND_ONNX_SHA1_H
#define AMPC_FRONTEND_ONNX_SHA1_H

#include <stddef.h>
#include <stdint.h>

typedef struct Sha1 {
    uint32_t h[5];
    uint64_t len;
    uint8_t block[64];
} Sha1;

void sha1_init(Sha1 *s);
void sha1_add(Sha1 *s, const void *p, size_t n);
void sha1_end(Sha1 *s, uint8_t digest[20]);

#endif
