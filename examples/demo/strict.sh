#!/bin/sh
# Compiles the calculator at every level of optimisation, with every warning an error.
set -eu
here=$(dirname "$0")
echo "$MEDIATOR_RUN_ID $MEDIATOR_STEP" >>"$OUT/ledger"
for level in -O0 -O1 -O2 -O3 -Os; do
    (set -x && cc -std=c99 -pedantic -Wall -Wextra -Werror "$level" -o calc "$here/calc.c" "$here/eval.c")
done
