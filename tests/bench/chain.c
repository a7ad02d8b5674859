/* SPDX-License-Identifier: Apache-2.0 */
/* chain.c: writes a long model, to measure compilation. chain LAYERS WIDTH
   FILE.onnx|FILE.amp; ampc check FILE --loss mse */
#include <stdlib.h>
#include <string.h>

#include "tests/support/chain.h"

int main(int argc, char **argv) {
    StrBuf sb = {0};
    int layers = argc == 4 ? atoi(argv[1]) : 0;
    int width = argc == 4 ? atoi(argv[2]) : 0;
    if (layers < 1 || width < 1) {
        fputs("usage: chain LAYERS WIDTH FILE.onnx|FILE.amp\n", stderr);
        return 2;
    }
    const char *end = strrchr(argv[3], '.');
    (end && !strcmp(end, ".amp") ? chain_amp : chain_onnx)(&sb, layers, width);
    FILE *f = fopen(argv[3], "wb");
    bool ok = f && fwrite(sb.data, 1, sb.len, f) == sb.len;
    ok = f && fclose(f) == 0 && ok;
    if (!ok) perror(argv[3]);
    sb_free(&sb);
    return !ok;
}
