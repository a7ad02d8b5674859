/* weights.c: initial values of variables, from section "weights" behind the
   module's own ELF image.

   The file is read, never mapped: a file that shrinks under a mapping kills
   the host by SIGBUS.  Tail and directory are taken as hostile; the section's
   CRC is checked, so a damaged module is refused at open.                   */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/half.h"
#include "runtime/session.h"

/* ---- CRC-32, eight bytes at a time --------------------------------------- */

typedef struct Crc {
    uint32_t t[8][256];
} Crc;

static void crc_init(Crc *c) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t v = i;
        for (int k = 0; k < 8; k++) v = v >> 1 ^ (v & 1 ? 0xedb88320u : 0);
        c->t[0][i] = v;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            c->t[k][i] =
                c->t[k - 1][i] >> 8 ^ c->t[0][c->t[k - 1][i] & 0xff];
}

static uint32_t crc_add(const Crc *c, uint32_t crc, const uint8_t *p,
                        size_t n) {
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= crc;
        crc = c->t[7][lo & 0xff] ^ c->t[6][lo >> 8 & 0xff] ^
              c->t[5][lo >> 16 & 0xff] ^ c->t[4][lo >> 24] ^
              c->t[3][hi & 0xff] ^ c->t[2][hi >> 8 & 0xff] ^
              c->t[1][hi >> 16 & 0xff] ^ c->t[0][hi >> 24];
    }
    while (n--) crc = crc >> 8 ^ c->t[0][(crc ^ *p++) & 0xff];
    return ~crc;
}

/* ---- which file are we? -------------------------------------------------- */

/* The path that the kernel maps at `addr`: right even when the host has
   changed its folder since dlopen.                                          */
static bool path_from_maps(const void *addr, char *path, size_t size) {
    char line[4352];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "re");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        uintptr_t lo, hi;
        int at = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &lo,
                   &hi, &at) != 2 ||
            at == 0 || (uintptr_t)addr < lo || (uintptr_t)addr >= hi)
            continue;
        line[strcspn(line, "\n")] = 0;
        found = line[at] == '/' &&
                (size_t)snprintf(path, size, "%s", line + at) < size;
        break;
    }
    fclose(f);
    return found;
}

static bool module_path(const AmpcModule *m, char *path, size_t size) {
    Dl_info info;
    if (path_from_maps(m, path, size)) return true;
    return dladdr((const void *)m, &info) && info.dli_fname &&
           (size_t)snprintf(path, size, "%s", info.dli_fname) < size;
}

/* ---- reading ------------------------------------------------------------- */

typedef struct Reader {
    ampc_session *s;
    const char *path;
    int fd;
    uint64_t size;
} Reader;

static ampc_status damaged(Reader *r, const char *what) {
    return session_fail(r->s, AMPC_ERR_FORMAT, "%s: damaged module: %s",
                        r->path, what);
}

static ampc_status read_at(Reader *r, void *buf, size_t n, uint64_t offset) {
    char *p = buf;
    while (n) {
        ssize_t got = pread(r->fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return session_fail(r->s, AMPC_ERR_FILE, "%s: %s", r->path,
                                strerror(errno));
        if (got == 0) return damaged(r, "it became shorter");
        p += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return AMPC_OK;
}

static bool inside(uint64_t offset, uint64_t bytes, uint64_t limit) {
    return offset <= limit && bytes <= limit - offset;
}

static ampc_status find_weights(Reader *r, PlanSection *found) {
    PlanTail tail;
    if (r->size < sizeof tail) return damaged(r, "too short");
    ampc_status status =
        read_at(r, &tail, sizeof tail, r->size - sizeof tail);
    if (status != AMPC_OK) return status;
    uint64_t room = r->size - sizeof tail;
    if (tail.magic != AMPC_TAIL_MAGIC)
        return damaged(r, "no tail (truncated?)");
    if (tail.nsection > 4096 ||
        !inside(tail.directory, tail.nsection * sizeof *found, room))
        return damaged(r, "its directory");
    for (uint64_t i = 0; i < tail.nsection; i++) {
        status = read_at(r, found, sizeof *found,
                         tail.directory + i * sizeof *found);
        if (status != AMPC_OK) return status;
        if (strncmp(found->name, "weights", sizeof found->name) != 0) continue;
        if (found->zlib || !inside(found->offset, found->bytes, tail.directory))
            return damaged(r, "section 'weights'");
        return AMPC_OK;
    }
    return damaged(r, "no section 'weights'");
}

/* Copies what `chunk` (section bytes [at, at + n)) holds of each variable. */
static void scatter(ampc_session *s, const uint8_t *chunk, uint64_t at,
                    uint64_t n) {
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        if (v->init < 0 || v->kind == PLAN_GRAD) continue;
        uint64_t lo = (uint64_t)v->init, hi = lo + v->bytes;
        uint64_t from = lo > at ? lo : at, to = hi < at + n ? hi : at + n;
        if (from < to)
            memcpy((char *)s->var[i] + (from - lo), chunk + (from - at),
                   to - from);
    }
}

typedef struct Chunk {
    Crc crc;
    uint8_t data[256 << 10];
} Chunk;

static ampc_status read_section(Reader *r, const PlanSection *sec, Chunk *c) {
    ampc_status status = AMPC_OK;
    uint32_t crc = 0;
    for (uint64_t at = 0; at < sec->bytes && status == AMPC_OK;) {
        uint64_t n = sec->bytes - at;
        if (n > sizeof c->data) n = sizeof c->data;
        status = read_at(r, c->data, n, sec->offset + at);
        if (status != AMPC_OK) return status;
        crc = crc_add(&c->crc, crc, c->data, n);
        scatter(r->s, c->data, at, n);
        at += n;
    }
    return crc == sec->crc ? AMPC_OK : damaged(r, "checksum of the weights");
}

static ampc_status read_weights(Reader *r) {
    PlanSection sec;
    struct stat st;
    if (fstat(r->fd, &st) != 0)
        return session_fail(r->s, AMPC_ERR_FILE, "%s: %s", r->path,
                            strerror(errno));
    r->size = (uint64_t)st.st_size;
    ampc_status status = find_weights(r, &sec);
    if (status != AMPC_OK) return status;
    for (uint32_t i = 0; i < r->s->m->nvar; i++) {
        const PlanVar *v = &r->s->m->vars[i];
        if (v->init >= 0 && !inside((uint64_t)v->init, v->bytes, sec.bytes))
            return damaged(r, "section 'weights' is too short");
    }
    Chunk *c = mem_alloc(r->s, sizeof *c);
    if (!c) return session_fail(r->s, AMPC_ERR_MEMORY, "out of memory");
    crc_init(&c->crc);
    status = read_section(r, &sec, c);
    mem_free(r->s, c, sizeof *c);
    return status;
}

/* ---- constant fill ------------------------------------------------------- */

static void fill_value(uint32_t dtype, double x, void *out) {
    switch (dtype) {
    case AMPC_F16: *(uint16_t *)out = f32_to_f16((float)x); break;
    case AMPC_BF16: *(uint16_t *)out = f32_to_bf16((float)x); break;
    case AMPC_F32: *(float *)out = (float)x; break;
    case AMPC_F64: *(double *)out = x; break;
    case AMPC_BOOL: *(uint8_t *)out = x != 0; break;
    case AMPC_U64: *(uint64_t *)out = (uint64_t)x; break;
    case AMPC_U32: *(uint32_t *)out = (uint32_t)x; break;
    case AMPC_U16: *(uint16_t *)out = (uint16_t)x; break;
    case AMPC_U8: *(uint8_t *)out = (uint8_t)x; break;
    case AMPC_I64: *(int64_t *)out = (int64_t)x; break;
    case AMPC_I32: *(int32_t *)out = (int32_t)x; break;
    case AMPC_I16: *(int16_t *)out = (int16_t)x; break;
    case AMPC_I8: *(int8_t *)out = (int8_t)x; break;
    default: break;
    }
}

static void fill(const PlanVar *v, char *p) {
    _Alignas(8) char one[8] = {0};
    size_t size = dtype_bytes(v->dtype);
    fill_value(v->dtype, v->fill, one);
    if (memcmp(one, "\0\0\0\0\0\0\0\0", 8) == 0)
        memset(p, 0, v->bytes);
    else
        for (uint64_t at = 0; at < v->bytes; at += size)
            memcpy(p + at, one, size);
}

/* ---- all of it ----------------------------------------------------------- */

static ampc_status read_file_weights(ampc_session *s) {
    char path[4200];
    if (!module_path(s->m, path, sizeof path))
        return session_fail(s, AMPC_ERR_FILE,
                            "the module's own file cannot be found");
    Reader r = {.s = s, .path = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (r.fd < 0)
        return session_fail(s, AMPC_ERR_FILE, "%s: %s", path, strerror(errno));
    ampc_status status = read_weights(&r);
    close(r.fd);
    return status;
}

/* OUT.so has its weights in OUT.weights.safetensors. */
static ampc_status read_sidecar(ampc_session *s) {
    char path[4300];
    if (!module_path(s->m, path, 4200))
        return session_fail(s, AMPC_ERR_FILE,
                            "the module's own file cannot be found");
    size_t n = strlen(path);
    if (n > 3 && strcmp(path + n - 3, ".so") == 0) n -= 3;
    memcpy(path + n, ".weights.safetensors", sizeof ".weights.safetensors");
    return checkpoint_sidecar(s, path);
}

ampc_status weights_init(ampc_session *s) {
    bool file = false;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        if (v->kind == PLAN_GRAD) continue;
        if (v->init < 0)
            fill(v, s->var[i]);
        else
            file = true;
    }
    ampc_status status = file ? read_file_weights(s) : AMPC_OK;
    if (status == AMPC_OK && info_int(s->m, "sidecar_weights", 0))
        status = read_sidecar(s);
    return status;
}
