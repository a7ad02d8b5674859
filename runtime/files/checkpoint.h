/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h: declarations shared by saving and loading of checkpoints. */
#ifndef AMPC_CHECKPOINT_H
#define AMPC_CHECKPOINT_H

#include <locale.h>

#include "runtime/files/safetensors.h"
#include "runtime/api/session.h"

enum { CHECKPOINT_VERSION = 2, RNG_MAX = 16 };

/* The JSON section for scalars and the random state (a few numbers);
   NULL: the variable is a tensor.                                           */
const char *section_of(const PlanVar *v);
bool is_weight(const PlanVar *v);
bool is_saved(const PlanVar *v, int64_t micro);

/* The decimal point in files is a point, whatever the host's locale. */
typedef struct Locale {
    locale_t c, host;
} Locale;
/* The variable in whose place evaluation reads `name`: an average of --ema or
   --swa if averages are asked for, or an optimizer's `evaluated`; NULL: none.
 */
const char *evaluated_for(const char *name, bool asked, char *buf, size_t cap);
/* True if the host asked for averages instead of weights. */
ampc_status averages_asked(ampc_session *s, bool *asked);
Locale locale_enter(void);
void locale_leave(Locale l);

/* ---- quantized_weights.c ------------------------------------------------- */

/* The variable with the scales of weight v, whose *code is code; -1: v is
   not quantised. */
int scales_of(const AmpcModule *m, const PlanVar *v, int *code);
/* The weight whose scales v is; -1: v is not scales. */
int weight_of_scales(const AmpcModule *m, const PlanVar *v);
/* The variable in the form that files have. */
PlanVar widened_weight(const PlanVar *v, int code);
/* Rounds a floating tensor to codes and scales. */
ampc_status quantize_tensor(StFile *f, const StTensor *t, int code, void *q,
                            float *scale);

/* ---- safetensors_write.c ------------------------------------------------- */

/* Text that grows; NUL-terminated once text was appended. */
typedef struct Text {
    const ampc_session *s;
    char *p;
    size_t n, cap;
    bool failed; /* out of memory: later calls do nothing */
} Text;

void text_put(Text *t, const char *p, size_t n);
void text_printf(Text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void text_quoted(Text *t, const char *p);  /* as a JSON string */
void text_json(Text *t, const char *json); /* appends unchanged text, made
                                              valid UTF-8 */
void text_free(Text *t);

typedef struct StItem {
    const char *name;
    uint32_t dtype, rank;
    int64_t dim[AMPC_MAX_RANK];
    uint32_t var;     /* whose bytes */
    uint64_t bytes;   /* in the file */
    int scales, code; /* var holds codes, which are widened; -1: as it is */
} StItem;

typedef struct StOutput {
    const char *key, *metadata; /* __metadata__.KEY */
    const char *keep; /* the old file is kept as PATH with this suffix; NULL:
                         not kept */
} StOutput;

#define ST_PREVIOUS ".prev"
/* A number of the path; not 0. */
uint64_t path_mark(const char *path);
/* Leaves a complete new file at the path, or the old one (outfile.h). */
ampc_status st_write(ampc_session *s, const char *path, const StItem *items,
                     size_t nitem, const StOutput *out);

#endif
