#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed.sh ARCHIVE FILE...: prints the assembly that embed.h declares.
# .incbin costs nothing at build time, where a C array of a megabyte does.
set -eu
LC_ALL=C
export LC_ALL

archive=$1
shift

# The build sees no dependence on what .incbin reads: a checksum in the text
# makes the assembly change with the files.
echo "/* sum of all files: $(cat "$archive" "$@" | sha256sum | cut -c 1-64) */"

symbol() { printf '    .balign %s\n    .globl %s\n%s:\n' "$2" "$1" "$1"; }

echo '    .section .note.GNU-stack,"",%progbits'
echo '    .section .rodata'
symbol embed_runtime_a 64
echo "    .incbin \"$archive\""
echo '.Larchive_end:'
symbol embed_runtime_a_size 8
echo '    .quad .Larchive_end - embed_runtime_a'

# What the build made lies elsewhere and is named as if beside the sources.
name() { printf '%s' "${1#bazel-out/*/bin/}"; }
files=$(for f; do echo "$(name "$f") $f"; done | sort | cut -d' ' -f2)
i=0
for f in $files; do
    printf '.Lname%d: .asciz "%s"\n' $i "$(name "$f")"
    printf '.Ldata%d: .incbin "%s"\n.Lend%d: .byte 0\n' $i "$f" $i
    i=$((i + 1))
done
symbol embed_nfile 8
echo "    .quad $i"

echo '    .section .data.rel.ro.local,"aw"'
symbol embed_files 8
n=$i
i=0
while [ $i -lt $n ]; do
    echo "    .quad .Lname$i, .Ldata$i, .Lend$i - .Ldata$i"
    i=$((i + 1))
done
