#include "eval.h"

#include <limits.h>
#include <stddef.h>

struct reader {
    const char *start, *at;
    struct eval_error *error;
};

static long long sum(struct reader *r);

static long long fail(struct reader *r, const char *what)
{
    if (r->error->what == NULL) { /* the first error counts */
        r->error->what = what;
        r->error->column = (int)(r->at - r->start) + 1;
    }
    return 0;
}

static char next(struct reader *r)
{
    while (*r->at == ' ' || *r->at == '\t')
        r->at++;
    return *r->at;
}

/* Overflow wraps, as in the shell: signed overflow is undefined in C, unsigned is not. */
static long long wrap(unsigned long long value)
{
    return value <= LLONG_MAX ? (long long)value : -(long long)(ULLONG_MAX - value) - 1;
}

static long long number(struct reader *r)
{
    unsigned long long value = 0;

    if (*r->at < '0' || *r->at > '9')
        return fail(r, "expected a number");
    while (*r->at >= '0' && *r->at <= '9')
        value = value * 10 + (unsigned long long)(*r->at++ - '0');
    return wrap(value);
}

static long long atom(struct reader *r)
{
    long long value;

    switch (next(r)) {
    case '-':
        r->at++;
        return wrap(0ULL - (unsigned long long)atom(r));
    case '+':
        r->at++;
        return atom(r);
    case '(':
        r->at++;
        value = sum(r);
        if (next(r) != ')')
            return fail(r, "expected )");
        r->at++;
        return value;
    default:
        return number(r);
    }
}

static long long product(struct reader *r)
{
    long long left = atom(r);

    for (;;) {
        char op = next(r);
        long long right;

        if (op != '*' && op != '/' && op != '%')
            return left;
        r->at++;
        right = atom(r);
        if (r->error->what != NULL)
            return 0;
        if (op == '*')
            left = wrap((unsigned long long)left * (unsigned long long)right);
        else if (right == 0)
            return fail(r, "division by zero");
        else if (right == -1) /* LLONG_MIN / -1 traps on some machines */
            left = op == '/' ? wrap(0ULL - (unsigned long long)left) : 0;
        else
            left = op == '/' ? left / right : left % right;
    }
}

static long long sum(struct reader *r)
{
    long long left = product(r);

    for (;;) {
        char op = next(r);
        unsigned long long right;

        if (op != '+' && op != '-')
            return left;
        r->at++;
        right = (unsigned long long)product(r);
        left = wrap((unsigned long long)left + (op == '+' ? right : 0ULL - right));
    }
}

long long eval(const char *text, struct eval_error *error)
{
    struct reader r;
    long long value;

    r.start = r.at = text;
    r.error = error;
    error->what = NULL;
    value = sum(&r);
    if (next(&r) != '\0')
        fail(&r, "expected an operator");
    return error->what == NULL ? value : 0;
}
