"""Read the innermost loops out of the assembly that LLVM writes.

Only what the tests ask for: how many fused multiply-adds, vector stores and vector
accesses of the stack a loop holds, on x86-64 and aarch64 (ELF).
"""

import re
from dataclasses import dataclass, replace

_BRANCH = re.compile(r"^(?:j[a-z]+|b(?:\.[a-z]+)?|cbn?z|tbn?z)\s+(?:.*,\s*)?([.\w$]+)$")
_DEBUG_LABEL = re.compile(r"^\.?L(tmp|func_(begin|end)|cfi|debug|info|str|line|JTI|CPI)")


@dataclass(frozen=True)
class Dialect:
    """How one architecture writes what we count."""

    comment: str
    fma: re.Pattern[str]
    vector: re.Pattern[str]
    store: re.Pattern[str]
    stack: re.Pattern[str]


X86 = Dialect(
    comment="#",
    fma=re.compile(r"^vfn?m(add|sub)\d{3}ps"),
    vector=re.compile(r"%[xyz]mm\d"),
    store=re.compile(r"^v?mov[a-z]*\d* %[xyz]mm\d+, -?\w*\("),
    stack=re.compile(r"\(%rsp[,)]"),
)
AARCH64 = Dialect(
    comment="//",
    fma=re.compile(r"^fml[as] "),
    vector=re.compile(r"(?:^|[ ,{])[qvd]\d+"),
    store=re.compile(r"^(st[rpu]\w*|st1\w*) (?=\{?[qvd]\d)"),
    stack=re.compile(r"\[sp\b"),
)

# Products of integers instead, as the dots of gemm.dots do them.
X86_INTEGERS = replace(X86, fma=re.compile(r"^v(pdpbusd|pdpwssd|pmaddwd) "))
AARCH64_INTEGERS = replace(AARCH64, fma=re.compile(r"^sdot "))


@dataclass(frozen=True)
class Loop:
    """What one innermost loop holds."""

    fma: int
    vector_stores: int
    stack_accesses: int


def fma_loops(assembly: str, dialect: Dialect) -> list[Loop]:
    """Return the innermost loops that hold vector multiply-adds, the largest first."""
    blocks = _blocks(assembly, dialect)
    position = {label: i for i, (label, _) in enumerate(blocks)}
    spans = set()
    for end, (_, instructions) in enumerate(blocks):
        for instruction in instructions:
            branch = _BRANCH.match(instruction)
            if branch and position.get(branch[1], len(blocks)) <= end:
                spans.add((position[branch[1]], end))
    holding = {span for span in spans if _count(blocks, span, dialect.fma)}
    inner = [
        (first, last)
        for first, last in holding
        if not any(
            other != (first, last) and first <= other[0] and other[1] <= last for other in holding
        )
    ]
    return sorted((_loop(blocks, span, dialect) for span in inner), key=lambda loop: -loop.fma)


def _blocks(assembly, dialect):
    """Return the basic blocks: a label and its instructions; a branch ends a block."""
    blocks = [("entry", [])]
    for line in assembly.splitlines():
        text = " ".join(line.split(dialect.comment)[0].split())
        label = re.match(r"^([.\w$]+):", text)
        if label:
            if not _DEBUG_LABEL.match(label[1]):
                blocks.append((label[1], []))
        elif text and not text.startswith("."):
            blocks[-1][1].append(text)
            if _BRANCH.match(text):
                blocks.append((f"after {len(blocks)}", []))
    return blocks


def _body(blocks, span):
    return [text for _, texts in blocks[span[0] : span[1] + 1] for text in texts]


def _count(blocks, span, pattern):
    return sum(bool(pattern.search(text)) for text in _body(blocks, span))


def _loop(blocks, span, dialect):
    body = _body(blocks, span)
    return Loop(
        fma=sum(bool(dialect.fma.search(text)) for text in body),
        vector_stores=sum(bool(dialect.store.search(text)) for text in body),
        stack_accesses=sum(
            bool(dialect.stack.search(text) and dialect.vector.search(text)) for text in body
        ),
    )
