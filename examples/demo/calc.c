/* calc EXPRESSION: prints its value; exit code 1 and a message when it has none. */
#include <stdio.h>

#include "eval.h"

int main(int argc, char **argv)
{
    struct eval_error error;
    long long value;

    if (argc != 2) {
        fputs("usage: calc EXPRESSION\n", stderr);
        return 2;
    }
    value = eval(argv[1], &error);
    if (error.what != NULL) {
        fprintf(stderr, "calc: column %d: %s\n", error.column, error.what);
        return 1;
    }
    printf("%lld\n", value);
    return 0;
}
