/* SPDX-License-Identifier: Apache-2.0 */
/* classes.h: the names that class numbers stand for: of the folders of
   pictures, or of the words in a column.  The numbers are their places in the
   order of the names' bytes. */
#ifndef AMPC_FRONTEND_DATA_CLASSES_H
#define AMPC_FRONTEND_DATA_CLASSES_H

#include "ir/base/base.h"

typedef struct Classes {
    char **name; /* sorted; NULL: the labels have no names */
    int n;
} Classes;

/* The classes of some inputs. */
typedef struct InputClasses {
    char *input;
    Classes classes;
} InputClasses;
typedef struct KnownClasses {
    InputClasses *of;
    int n;
} KnownClasses;
/* Those of an input; NULL: not among them. */
const Classes *classes_known(const KnownClasses *k, const char *input);

/* Copies n names, each once; false: out of memory. Free with classes_free. */
bool classes_make(Classes *c, const char *const *names, int n);
void classes_free(Classes *c);
/* The number of a name; -1: it is not among them. */
int64_t classes_find(const Classes *c, const char *name);
/* "0 ant, 1 bee". */
void classes_tell(const Classes *c, StrBuf *sb);
/* "is not one of the 2 classes that train: ant, bee". */
void classes_unknown(const Classes *c, StrBuf *sb);

#endif
