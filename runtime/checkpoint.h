/* checkpoint.h: what saving and loading of checkpoints share. */
#ifndef AMPC_CHECKPOINT_H
#define AMPC_CHECKPOINT_H

#include <locale.h>

#include "runtime/safetensors.h"

enum { CHECKPOINT_VERSION = 2, RNG_MAX = 16 };

/* The section in the JSON for scalars and the random state (a few numbers);
   NULL: the variable is a tensor.                                           */
const char *section_of(const PlanVar *v);
bool is_weight(const PlanVar *v);
bool is_saved(const PlanVar *v, int64_t micro);

/* Decimal points are points in files, whatever the host's locale. */
typedef struct Locale {
    locale_t c, host;
} Locale;
Locale locale_enter(void);
void locale_leave(Locale l);

#endif
