# SPDX-License-Identifier: Apache-2.0
"""Tests that load modules into programs of other compilers or into Python."""

# Modules of a sanitized ampc need the sanitizers' libraries, which script/test
# names. Loaded first, these check other programs, too: Python's leaks, and how
# troff frees its memory.
SANITIZED_HOSTS = select({
    "//:asan": {
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0",
        "LD_PRELOAD": "$(SANITIZERS)",
    },
    "//conditions:default": {},
})
