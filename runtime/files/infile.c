/* SPDX-License-Identifier: Apache-2.0 */
/* infile.c: see infile.h. */
#include "runtime/files/infile.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>
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

const char infile_pointer[] =
    "a pointer of Git LFS, not the file itself: git lfs pull fetches it";
const char infile_page[] =
    "a web page about the file: fetch the file itself, by its download link";

static bool infile_begins(const char *p, uint64_t n, const char *mark) {
    size_t k = strlen(mark);
    return n >= k && !strncasecmp(p, mark, k);
}

const char *infile_instead(const void *bytes, uint64_t n) {
    const char *p = bytes;
    if (infile_begins(p, n, "\xef\xbb\xbf")) p += 3, n -= 3;
    for (; n && memchr(" \t\r\n", *p, 4); n--) p++;
    if (infile_begins(p, n, "version https://git-lfs")) return infile_pointer;
    return infile_begins(p, n, "<!doctype html") || infile_begins(p, n, "<html")
               ? infile_page
               : NULL;
}

const char *infile_instead_of(int fd) {
    char begin[INFILE_BEGIN];
    int64_t n = infile_read(fd, begin, sizeof begin, 0);
    return n > 0 ? infile_instead(begin, (uint64_t)n) : NULL;
}
