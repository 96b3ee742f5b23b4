/* Integer arithmetic as in the shell's $((..)): + - * / % and parentheses, 64 bits. */
#ifndef EVAL_H
#define EVAL_H

struct eval_error {
    const char *what; /* NULL: the expression was good */
    int column;       /* counts from 1 */
};

/* Returns the value of `text`; when it has none, `error` says why and where. */
long long eval(const char *text, struct eval_error *error);

#endif
