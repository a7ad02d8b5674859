/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.c: a table of kinds of files; '@' in a command stands for the
   file. */
#include "frontend/data/foreign.h"

#include <ctype.h>
#include <string.h>

#define PANDAS(how)                                                            \
    "python3 -c \"import pandas; pandas." how ".to_csv('@.csv', "              \
    "index=False)\""
#define HDF5                                                                   \
    "python3 -c \"import h5py, numpy; f = h5py.File('@'); "                    \
    "numpy.savez('@.npz', **{k: f[k][()] for k in f})\""
#define PICKLE                                                                 \
    "python3 -c \"import pickle, numpy; d = pickle.load(open('@', 'rb'), "     \
    "encoding='latin1'); numpy.savez('@.npz', **d) if isinstance(d, dict) "    \
    "else numpy.save('@.npy', d)\" (a pickle runs code as it is read: only "   \
    "from people whom you trust)"
#define PNG                                                                    \
    "python3 -c \"from PIL import Image; "                                     \
    "Image.open('@').convert('RGB').save('@.png')\", and take the original "   \
    "away"
#define FOLDER                                                                 \
    "an input takes a folder of pictures, FOLDER/FILE, or FOLDER/CLASS/FILE "  \
    "for labels, too"

typedef struct Kind {
    int at; /* offset of the mark in the file */
    const char *mark;
    int n;
    const char *what, *how;
} Kind;

static const Kind kinds[] = {
    {0, "PAR1", 4, "a Parquet file", PANDAS("read_parquet('@')")},
    {0, "ARROW1", 6, "an Arrow (Feather) file", PANDAS("read_feather('@')")},
    {0, "\x89HDF\r\n\x1a\n", 8, "an HDF5 file", HDF5},
    {0, "MATLAB 7.3", 10, "a MATLAB file of version 7.3", HDF5},
    {0, "MATLAB 5", 8, "a MATLAB file",
     "python3 -c \"import scipy.io, numpy; d = scipy.io.loadmat('@'); "
     "numpy.savez('@.npz', **{k: d[k] for k in d if k[0] != '_'})\""},
    {0, "\x80\x02", 2, "a pickle", PICKLE},
    {0, "\x80\x03", 2, "a pickle", PICKLE},
    {0, "\x80\x04", 2, "a pickle", PICKLE},
    {0, "\x80\x05", 2, "a pickle", PICKLE},
    {0, "SQLite format 3", 15, "an SQLite database",
     "sqlite3 -csv -header '@' 'select * from TABLE' > '@.csv'"},
    {8, "WEBP", 4, "a WebP picture", PNG},
    {0, "GIF8", 4, "a GIF picture", PNG},
    {0, "II*\0", 4, "a TIFF picture", PNG},
    {0, "MM\0*", 4, "a TIFF picture", PNG},
    {4, "ftypavif", 8, "an AVIF picture", PNG},
    {4, "ftyphei", 7, "a HEIC picture", PNG},
    {0, "BM", 2, "a BMP picture", PNG},
    {0, "\x89PNG", 4, "a PNG picture", FOLDER},
    {0, "\xff\xd8\xff", 3, "a JPEG picture", FOLDER},
    {8, "WAVE", 4, "a sound (WAV)",
     "python3 -c \"import scipy.io.wavfile, numpy; numpy.save('@.npy', "
     "scipy.io.wavfile.read('@')[1])\""},
    {257, "ustar", 5, "a tar archive", "tar -xf '@'"},
    {0, "\x28\xb5\x2f\xfd", 4, "a file packed by zstd", "unzstd '@'"},
    {0,
     "\xfd"
     "7zXZ",
     5, "a file packed by xz", "unxz -k '@'"},
    {0, "BZh", 3, "a file packed by bzip2", "bunzip2 -k '@'"},
    {0, "{", 1, "a JSON text", PANDAS("read_json('@', lines=True)")},
    {0, "[", 1, "a JSON text", PANDAS("read_json('@')")},
};

/* Kinds of zip archives, recognised by the ending of a member's name. */
static const Kind members[] = {
    {0, "/data.pkl", 9, "a file of torch.save",
     "python3 -c \"import torch, numpy; numpy.save('@.npy', "
     "torch.load('@').numpy())\" for a tensor; of several, name them: "
     "numpy.savez('@.npz', x=.., target=..)"},
    {0, "xl/workbook.xml", 15, "an Excel file", PANDAS("read_excel('@')")},
};

const char *name_to_copy(const char *path) {
    for (const unsigned char *p = (const unsigned char *)path; *p; p++)
        if (*p < 128 && !isalnum(*p) && !strchr("/._-+,:=@% ", *p))
            return "FILE";
    return *path == '-' ? "FILE" : path;
}

static bool put_foreign(const Kind *k, const char *path, StrBuf *sb) {
    const char *name = name_to_copy(path);
    sb_printf(sb, "%s, which is not read as it is: ", k->what);
    for (const char *p = k->how; *p; p++)
        if (*p == '@')
            sb_puts(sb, name);
        else
            sb_putn(sb, p, 1);
    if (name != path && strchr(k->how, '@'))
        sb_puts(sb, " (rename it to FILE first: its name has letters that a "
                    "shell may take for a command)");
    return true;
}

bool foreign_tell(const unsigned char *p, size_t n, const char *path,
                  StrBuf *sb) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const Kind *k = &kinds[i];
        if (n >= (size_t)(k->at + k->n) &&
            !memcmp(p + k->at, k->mark, (size_t)k->n))
            return put_foreign(k, path, sb);
    }
    return false;
}

bool foreign_member(const char *member, const char *path, StrBuf *sb) {
    size_t n = strlen(member);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const Kind *k = &members[i];
        if (n >= (size_t)k->n && !strcmp(member + n - k->n, k->mark))
            return put_foreign(k, path, sb);
    }
    return false;
}
