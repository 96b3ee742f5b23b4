#!/bin/sh
# Compiles the calculator with $CFLAGS, tries it out here, and leaves it where the boards find it: $OUT is a folder that
# both share.
set -eu
here=$(dirname "$0")
echo "$MEDIATOR_RUN_ID $MEDIATOR_STEP" >>"$OUT/ledger"
set -x
# CFLAGS is a list of words.
# shellcheck disable=SC2086
cc -std=c99 $CFLAGS -o calc "$here/calc.c" "$here/eval.c"
CASES=300 sh "$here/test.sh"
mkdir -p "$OUT/$MEDIATOR_RUN_ID"
cp calc "$OUT/$MEDIATOR_RUN_ID/calc"
