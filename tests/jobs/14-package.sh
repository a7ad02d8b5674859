# SPDX-License-Identifier: Apache-2.0
# What an installation holds, and its removal.
test "$(ampc --version)" = "$(ampc version)"
ampc help | grep 'ampc run'
ampc --version | grep "$(pkg-config --modversion ampc)"
man -l "$PREFIX/share/man/man1/ampc-run.1" | grep -e '--resume'
bash -n "$PREFIX/share/bash-completion/completions/ampc"
cp -r "$PREFIX" moved
moved/share/ampc/uninstall
test -z "$(ls moved)"
