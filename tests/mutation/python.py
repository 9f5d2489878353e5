"""Mutants of Python, from the syntax tree, whose positions tell what to replace in the text."""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tests.mutation.mutant import Mutant, Place

COMPARISONS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}
COMPARISON = re.compile(r"is\s+not\b|not\s+in\b|is\b|in\b|[<>=!]=|[<>]")
DECLARATIONS = {"__all__", "__slots__"}
DROPPED = (ast.Expr, ast.AugAssign, ast.Delete, ast.Raise, ast.Return, ast.Break, ast.Continue)

Node = ast.expr | ast.stmt | ast.keyword


def mutants(file: str, source: bytes) -> list[Mutant]:
    """Return the mutants of a file; few of them do not compile."""
    return _Walk(file, source).found


def compiles(source: bytes) -> bool:
    """Return whether Python can read this."""
    try:
        compile(source, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Walk(ast.NodeVisitor):
    """Goes through a file, and knows the function and the statement that it is in."""

    def __init__(self, file: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._file, self._source = file, source
        self._starts = [0]
        for line in source.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._names: list[str] = []
        self._inside = False
        self._bound: Counter[str] = Counter()
        self._statement: ast.stmt | None = None
        for statement in ast.parse(source).body:
            self.visit(statement)

    # ---- where we are

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            before, self._statement = self._statement, node
            self._drop_statement(node)
            super().visit(node)
            self._statement = before
        else:
            super().visit(node)

    def _visit_all(self, nodes: Sequence[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any(ast.unparse(one).endswith("overload") for one in node.decorator_list):
            return
        before = self._inside, self._bound
        self._names.append(node.name)
        self._visit_all([*node.decorator_list, *node.args.defaults, *node.args.kw_defaults])
        stored = (one for one in ast.walk(node) if isinstance(one, ast.Name))
        self._inside = True
        self._bound = Counter(one.id for one in stored if isinstance(one.ctx, ast.Store))
        self._bound.update(one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg))
        self._visit_all(node.body)
        self._names.pop()
        self._inside, self._bound = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._inside = self._inside, False
        self._names.append(node.name)
        ours = (one for one in node.decorator_list if "dataclass" not in ast.unparse(one))
        self._visit_all([*ours, *node.body])
        self._names.pop()
        self._inside = before

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Python before 3.12 does not know the positions of what is in it."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """It tells a type checker something: `python -O` runs without it."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if "TypeAlias" not in ast.unparse(node.annotation):
            self._visit_all([node.value])

    def visit_Assign(self, node: ast.Assign) -> None:
        types = isinstance(node.value, (ast.BinOp, ast.Subscript)) and not self._inside
        name = ast.unparse(node.targets[0])
        if name not in DECLARATIONS and not (types and name[:1].isupper() and not name.isupper()):
            self.generic_visit(node)

    # ---- the operators

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "not TYPE_CHECKING"):
            return
        self._choose(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._choose(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._choose(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._choose(test)
        self.generic_visit(node)

    def _choose(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Constant):
            for new in ("True", "False"):
                self._replace("condition", *self._span(test), new)

    def visit_Compare(self, node: ast.Compare) -> None:
        left: ast.expr = node.left
        for right in node.comparators:
            gap = self._source[self._span(left)[1] : self._span(right)[0]].decode()
            if found := COMPARISON.search(gap):
                start = self._span(left)[1] + len(gap[: found.start()].encode())
                new = COMPARISONS[" ".join(found[0].split())]
                self._replace("comparison", start, start + len(found[0]), new)
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        spans = [self._span(one) for one in node.values]
        self._replace("part", spans[0][0], spans[1][0], "")
        for (_, before), (start, end) in pairwise(spans):
            at = self._source.find(word.encode(), before, start)
            self._replace("boolean", at, at + len(word), other)
            self._replace("part", before, end, "")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start, _ = self._span(node)
        if isinstance(node.op, ast.Not):
            self._replace("boolean", start, start + len("not"), "")
        elif isinstance(node.op, ast.USub):
            self._replace("part", start, start + len("-"), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if new := _other(node.value):
            self._replace("constant", *self._span(node), new)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._replace("part", self._span(node.left)[1], self._span(node)[1], "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match ast.unparse(node.func):
            case "TypeVar" | "ParamSpec":
                return  # for type checkers
            case "lru_cache" | "functools.lru_cache":
                return  # how much is kept can't be seen
            case "cast" | "ContextVar":  # a type and a name, which nothing reads
                self._visit_all([*node.args[1:], *node.keywords])
                return
            case "zip":
                self._visit_all(node.args)  # `strict` is an assert, too
                return
        parts: list[Node] = [*node.args, *node.keywords]
        for number, part in enumerate(parts):
            if part in node.args[:-1] or isinstance(part, ast.Starred):
                continue  # the call would lack what it needs, and fail at once
            if isinstance(part, ast.keyword) and part.arg is None:
                continue
            start, end = self._span(part)
            if number:
                start = self._span(parts[number - 1])[1]
            elif len(parts) > 1:
                end = self._span(parts[1])[0]
            self._replace("part", start, end, "")
        self.generic_visit(node)

    def _drop_statement(self, node: ast.stmt) -> None:
        if not self._inside or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            return
        if isinstance(node, ast.Raise) and ast.unparse(node) == "raise AssertionError":
            return  # where only a type checker believes that one can come
        if isinstance(node, DROPPED) or self._assigns_again(node):
            start, end = self._span(node)
            lines = self._source[start:end].count(b"\n")
            self._replace("statement", start, end, "pass" + "\n" * lines)

    def _assigns_again(self, node: ast.stmt) -> bool:
        """Whether the code after an assignment could run without it."""
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            return False
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(
            isinstance(one, (ast.Attribute, ast.Subscript))
            or (isinstance(one, ast.Name) and self._bound[one.id] > 1)
            for one in targets
        )

    # ---- positions

    def _span(self, node: Node) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _replace(self, operator: str, start: int, end: int, new: str) -> None:
        assert self._statement is not None
        first, last = self._statement.lineno, self._statement.end_lineno or 0
        if body := getattr(self._statement, "body", None):
            last = max(first, body[0].lineno - 1)  # of a compound statement, its head
        place = Place(".".join(self._names), range(first, last + 1), not self._inside)
        line = self._source.count(b"\n", 0, start) + 1
        old = self._source[start:end].decode()
        self.found.append(Mutant(self._file, operator, start, end, old, new, line, place))


def _other(value: object) -> str | None:
    """Return another constant; texts with spaces are for people, whose wording is free."""
    match value:
        case bool():
            return str(not value)
        case int() | float():
            return repr(value + 1)
        case str() if not re.search(r"\s", value):
            return '""' if value else '"x"'
        case bytes():
            return 'b""' if value else 'b"x"'
    return None
