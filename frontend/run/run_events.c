/* SPDX-License-Identifier: Apache-2.0 */
/* run_events.c: writes the numbers of the log for TensorBoard: a TFRecord file
   of Event messages, each
     u64 length, u32 masked CRC-32C of it, the message, u32 masked CRC-32C.  */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- framing ------------------------------------------------------------- */

static uint32_t crc32c(const void *data, size_t n) {
    uint32_t crc = ~0u;
    for (const unsigned char *p = data; n--; p++) {
        crc ^= *p;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void put_bytes(StrBuf *sb, const void *p, size_t n) {
    sb_putn(sb, p, n);
}

/* The format masks a CRC, because CRCs of text that contains CRCs are weak. */
static void put_crc(StrBuf *sb, const void *data, size_t n) {
    uint32_t crc = crc32c(data, n);
    crc = (crc >> 15 | crc << 17) + 0xa282ead8u;
    put_bytes(sb, &crc, sizeof crc);
}

static void put_record(RunLog *log, const StrBuf *message) {
    StrBuf sb = {0};
    uint64_t n = message->len;
    put_bytes(&sb, &n, sizeof n);
    put_crc(&sb, &n, sizeof n);
    put_bytes(&sb, message->data, message->len);
    put_crc(&sb, message->data, message->len);
    fwrite(sb.data, 1, sb.len, log->events_out);
    fflush(log->events_out); /* readers follow the file while it grows */
    sb_free(&sb);
}

/* ---- messages: fields of event.proto and summary.proto ------------------- */

enum { WALL_TIME = 1, STEP = 2, FILE_VERSION = 3, SUMMARY = 5 }; /* Event */
enum { VALUE = 1 };                 /* Summary, repeated */
enum { TAG = 1, SIMPLE_VALUE = 2 }; /* Summary.Value */
enum { VARINT = 0, EIGHT = 1, BYTES = 2, FOUR = 5 };

static void events_put_key(StrBuf *sb, int field, int wire) {
    sb_putn(sb, (char[]){(char)(field << 3 | wire)}, 1);
}

static void events_put_varint(StrBuf *sb, uint64_t v) {
    for (; v >= 128; v >>= 7) sb_putn(sb, (char[]){(char)(v | 128)}, 1);
    sb_putn(sb, (char[]){(char)v}, 1);
}

static void events_put_block(StrBuf *sb, int field, const void *data,
                             size_t n) {
    events_put_key(sb, field, BYTES);
    events_put_varint(sb, n);
    put_bytes(sb, data, n);
}

static void put_time(StrBuf *sb) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    double seconds = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    events_put_key(sb, WALL_TIME, EIGHT);
    put_bytes(sb, &seconds, sizeof seconds);
}

void events_scalars(Run *r, int64_t step, const RunScalar *scalars, int n) {
    StrBuf event = {0}, summary = {0};
    if (!r->log.events_out) return;
    for (int i = 0; i < n; i++) {
        StrBuf value = {0};
        float x = (float)scalars[i].value;
        events_put_block(&value, TAG, scalars[i].tag, strlen(scalars[i].tag));
        events_put_key(&value, SIMPLE_VALUE, FOUR);
        put_bytes(&value, &x, sizeof x);
        events_put_block(&summary, VALUE, value.data, value.len);
        sb_free(&value);
    }
    put_time(&event);
    events_put_key(&event, STEP, VARINT);
    events_put_varint(&event, (uint64_t)step);
    events_put_block(&event, SUMMARY, summary.data, summary.len);
    put_record(&r->log, &event);
    sb_free(&event);
    sb_free(&summary);
}

/* ---- the file ------------------------------------------------------------ */

/* A unique name that begins as TensorBoard requires. */
Status events_open(Run *r) {
    RunLog *log = &r->log;
    StrBuf path = {0}, event = {0};
    TRY(file_folder(&r->diag, r->opt->tensorboard, r->guard, "--tensorboard"));
    sb_printf(&path, "%s/events.out.tfevents.%lld.ampc.%ld",
              r->opt->tensorboard, (long long)time(NULL), (long)getpid());
    log->events_path = path.data;
    if (outfile_append(&log->events_file, path.data, false, r->guard,
                       "--tensorboard"))
        log->events_out = outfile_stream(&log->events_file);
    if (!log->events_out)
        return file_failed(&r->diag, path.data, &log->events_file);
    put_time(&event);
    events_put_block(&event, FILE_VERSION, "brain.Event:2", 13);
    put_record(log, &event);
    sb_free(&event);
    return OK;
}

Status events_close(Run *r) {
    RunLog *log = &r->log;
    log->events_out = NULL;
    return outfile_commit(&log->events_file)
               ? OK
               : file_failed(&r->diag, log->events_path, &log->events_file);
}
