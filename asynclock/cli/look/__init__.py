"""Commands for operators: `inspect`, `top`, `release` and `serve`."""
