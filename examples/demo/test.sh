#!/bin/sh
# Tests ./calc, or the program named by the first argument, and counts in the file `progress` how far it is:
# first a table of cases, then CASES random expressions against the shell's own arithmetic.
set -eu
calc=${1:-./calc}
cases=${CASES:-1000}

fail() {
    echo "FAILED: calc '$1' gave '$2', expected '$3'"
    exit 1
}

while IFS='|' read -r expression expected; do
    got=$("$calc" "$expression" 2>&1) || true
    [ "$got" = "$expected" ] || fail "$expression" "$got" "$expected"
done <<'TABLE'
1|1
2+3*4|14
(2+3)*4|20
-7/2|-3
-7%2|-1
--5|5
 1 -  2 - 3|-4
9223372036854775807+1|-9223372036854775808
(0-9223372036854775807-1)/-1|-9223372036854775808
|calc: column 1: expected a number
1+|calc: column 3: expected a number
(1|calc: column 3: expected )
1 2|calc: column 3: expected an operator
4/(2-2)|calc: column 8: division by zero
TABLE
echo "the table of cases is right"

# The same expressions each time: a linear congruential generator, seeded by the attempt's inputs alone.
seed=${SEED:-1}
random() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    value=$((seed / 65536 % $1))
}

count=0
while [ "$count" -lt "$cases" ]; do
    random 1000
    expression=$value
    random 6
    terms=$((value + 1))
    while [ "$terms" -gt 0 ]; do
        random 5
        case $value in
            0) op=+ ;;
            1) op=- ;;
            2) op=\* ;;
            3) op=/ ;;
            *) op=% ;;
        esac
        random 999
        # Never 0, so that the shell can divide by it.
        expression="($expression) $op $((value + 1))"
        terms=$((terms - 1))
    done
    got=$("$calc" "$expression") || true
    expected=$(($expression))
    [ "$got" = "$expected" ] || fail "$expression" "$got" "$expected"
    count=$((count + 1))
    [ $((count % 50)) -ne 0 ] || echo "$count" >progress
    [ $((count % 500)) -ne 0 ] || echo "$count of $cases random expressions are right"
done
echo "all right"
