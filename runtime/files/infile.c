/* SPDX-License-Identifier: Apache-2.0 */
/* infile.c: see infile.h. */
#include "runtime/files/infile.h"

#include <errno.h>
#include <unistd.h>

/* No system reads more in one call (Linux: 2 GiB less a page). */
static const uint64_t READ_MOST = 1 << 30;

int64_t infile_read(int fd, void *out, uint64_t n, uint64_t at) {
    uint64_t done = 0;
    if (at > INT64_MAX || n > INT64_MAX - at) {
        errno = EOVERFLOW;
        return -1;
    }
    while (done < n) {
        size_t part = (size_t)(n - done < READ_MOST ? n - done : READ_MOST);
        ssize_t got = pread(fd, (char *)out + done, part, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (uint64_t)got;
    }
    return (int64_t)done;
}

bool infile_whole(int fd, void *out, uint64_t n, uint64_t at) {
    return infile_read(fd, out, n, at) == (int64_t)n;
}
