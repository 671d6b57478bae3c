"""Mistakes of the scalar layer: the class of each, the line that it points at, and its words."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from loma import errors
from loma.frontend import parse

# What the programs below may use.
HEAD = """
class P:
    left : float
    v : Array[float, 3]
    k : int

def square(x : In[float]) -> float:
    return x * x

def put(y : Out[float]):
    y = 1.0

def copy(m : In[Array[float]], y : Out[Array[float]]):
    y[0] = m[0]

def move(p : In[P], q : Out[P]):
    q = p

def make() -> P:
    p : P
    return p

@simd
def each(y : Out[Array[float]]):
    y[thread_id()] = 1.0

d_square = fwd_diff(square)
r_square = rev_diff(square)
r_each = rev_diff(each)
"""
SIGNATURE = "x : In[float], n : In[int], a : In[Array[float]], o : Out[Array[float, 3]]"


@dataclass(frozen=True, slots=True)
class Mistake:
    """A program with ``#!`` at the end of the line that is wrong."""

    name: str
    program: str
    error: type[errors.UserError]
    words: str
    hint: str | None = None


def inside(name: str, body: str, error: type[errors.UserError], words: str,
           hint: str | None = None) -> Mistake:  # fmt: skip
    """A mistake in the body of a function, ``;`` between its lines."""
    lines = "".join(f"    {line}\n" for line in body.split("; "))
    program = f"{HEAD}\ndef f({SIGNATURE}) -> float:\n{lines}    return x\n"
    return Mistake(name, program, error, words, hint)


def whole(name: str, program: str, error: type[errors.UserError], words: str,
          hint: str | None = None) -> Mistake:  # fmt: skip
    return Mistake(name, program, error, words, hint)


E = errors
MISTAKES = (
    # --------------------------------------------------------------------- returns, declarations
    inside("early return", "if x > 0.0:;     return x #!", E.ReturnNotLastStmt,
           "'return' must be the last statement"),
    inside("early return in a loop", "while (x > 0.0, max_iter := 3):;     return x #!",
           E.ReturnNotLastStmt, "must be the last statement"),
    inside("dead code after return", "return x #!; x = 1.0", E.ReturnNotLastStmt,
           "must be the last statement"),
    whole("no return", "def f(x : In[float]) -> float: #!\n    x = 1.0\n", E.ReturnMissing,
          "does not end with 'return'"),
    inside("unbounded local array", "b : Array[float] #!", E.DeclareUnboundedArray,
           "array 'b' needs a size", "Array[float, 3]"),
    inside("unbounded array in a local array", "b : Array[Array[float], 3] #!",
           E.DeclareUnboundedArray, "array 'b' needs a size"),
    inside("unbounded differential array", "b : Diff[Array[float]] #!", E.DeclareUnboundedArray,
           "needs a size"),
    inside("declaration in a branch", "if x:;     b : float #!", E.DeclarationNotOutmostLevel,
           "'b' is declared inside 'if'", "declare it before"),
    inside("declaration in an else", "if x:;     pass; else:;     b : float #!",
           E.DeclarationNotOutmostLevel, "'b' is declared inside"),
    inside("declaration in a while loop", "while (x, max_iter := 3):;     b : int = 1 #!",
           E.DeclarationNotOutmostLevel, "'b' is declared inside"),
    inside("declaration in a for loop", "for i in range(3):;     b : P #!",
           E.DeclarationNotOutmostLevel, "'b' is declared inside"),
    # ------------------------------------------------------------------------------------- names
    inside("undeclared variable read", "x = valeu #!", E.UndeclaredVariable,
           "variable 'valeu' is not declared", "declare it first: valeu : float"),
    inside("undeclared variable assigned", "y = 1.0 #!", E.UndeclaredVariable,
           "variable 'y' is not declared"),
    inside("undeclared subscript", "x += a[i] #!", E.UndeclaredVariable,
           "variable 'i' is not declared"),
    inside("undeclared struct", "q.left = 1.0 #!", E.UndeclaredVariable,
           "variable 'q' is not declared"),
    inside("undeclared array", "q[0] = 1.0 #!", E.UndeclaredVariable,
           "variable 'q' is not declared", "q : Array[float, 3]"),
    inside("nearest variable", "value : float; x = valeu #!", E.UndeclaredVariable,
           "variable 'valeu'", "did you mean 'value'?"),
    inside("function as a value", "x = square #!", E.UndeclaredVariable, "is a function",
           "call it: square(...)"),
    inside("struct as a value", "x = P #!", E.UndeclaredVariable, "is a struct"),
    inside("argument declared again", "x : int #!", E.DuplicateVariable,
           "'x' is already an argument"),
    inside("variable declared twice", "b : int; b : float #!", E.DuplicateVariable,
           "'b' is already a variable"),
    whole("argument twice", "def f(x : In[float], x : In[int]): #!\n    pass\n",
          E.DuplicateVariable, "'x' is already an argument"),
    whole("member twice", "class Q:\n    a : int\n    a : float #!\n", E.DuplicateVariable,
          "member 'a' is declared twice"),
    whole("missing annotation", "def f(x) -> float: #!\n    return x\n", E.FuncArgNotAnnotated,
          "argument 'x' of 'f' needs In[...] or Out[...]", "x : In[float]"),
    whole("annotation without In", "def f(x : Diff[float]): #!\n    pass\n",
          E.FuncArgNotAnnotated, "argument 'x' of 'f'", "x : In[Diff[float]]"),
    whole("annotation with a misspelt In", "def f(x : Im[float]): #!\n    pass\n",
          E.FuncArgNotAnnotated, "argument 'x' of 'f'", "x : In[float]"),
    inside("unknown function", "x = sgrt(x) #!", E.CallIDNotFound, "no function 'sgrt'",
           "did you mean 'sqrt'?"),
    inside("unknown function, own one near", "x = sqare(x) #!", E.CallIDNotFound,
           "no function 'sqare'", "did you mean 'square'?"),
    inside("unknown type", "b : flot #!", E.UnknownType, "no type 'flot'",
           "did you mean 'float'?"),
    inside("unknown element type", "b : Array[Q, 3] #!", E.UnknownType, "no type 'Q'"),
    inside("differential of nothing", "b : _dQ #!", E.UnknownType, "no type '_dQ'"),
    inside("no such member", "p : P; x = p.lef #!", E.StructMemberNotFound,
           "struct 'P' has no member 'lef'", "did you mean 'left'?"),
    inside("no such member, assigned", "p : P; p.right = 1.0 #!", E.StructMemberNotFound,
           "has no member 'right'", "its members are left, v, k"),
    inside("no such member of a result", "x = make().rest #!", E.StructMemberNotFound,
           "has no member 'rest'"),
    inside("no such member of a differential", "b : _dfloat; x = b.value #!",
           E.StructMemberNotFound, "struct '_dfloat' has no member 'value'",
           "its members are val, dval"),
    whole("two functions of one name",
          "def f():\n    pass\n\ndef f(): #!\n    pass\n", E.DuplicateFunction,
          "'f' is already defined"),
    whole("function and derivative of one name",
          "def f(x : In[float]) -> float:\n    return x\n\nf = rev_diff(f) #!\n",
          E.DuplicateFunction, "'f' is already defined"),
    whole("struct named _dfloat", "class _dfloat: #!\n    x : int\n", E.DuplicateFunction,
          "'_dfloat' is the differential type of 'float'"),
    whole("struct that clashes with a differential",
          "class _dFoo: #!\n    y : int\n\nclass Foo:\n    x : int\n", E.DuplicateFunction,
          "'_dFoo' is the differential type of 'Foo'"),
    whole("function of the language redefined",
          "def sin(x : In[float]) -> float: #!\n    return x\n", E.DuplicateFunction,
          "a name of the language itself"),
    whole("struct named like a type", "class float: #!\n    x : int\n", E.DuplicateFunction,
          "a name of the language itself"),
    # ------------------------------------------------------------------------- calls, recursion
    inside("call with Out argument in an expression", "x = put(x) #!",
           E.CallWithOutArgNotInCallStmt, "'put' has Out arguments"),
    inside("call with Out argument in an argument", "x = square(put(x)) #!",
           E.CallWithOutArgNotInCallStmt, "'put' has Out arguments"),
    inside("call with Out argument in a declaration", "b : float = put(x) #!",
           E.CallWithOutArgNotInCallStmt, "'put' has Out arguments"),
    inside("reverse derivative in an expression", "b : float; x = r_square(x, b, 1.0) #!",
           E.CallWithOutArgNotInCallStmt, "'r_square' has Out arguments"),
    inside("aliased arrays", "copy(o, o) #!", E.AliasedOutArgument,
           "arguments 'm' and 'y' of 'copy' are the same storage", "pass a copy"),
    inside("aliased structs", "p : P; move(p, p) #!", E.AliasedOutArgument,
           "arguments 'p' and 'q' of 'move'"),
    inside("aliased with a derivative's adjoint", "r_square(x, x, 1.0) #!", E.AliasedOutArgument,
           "arguments 'x' and '_d_x' of 'r_square'"),
    inside("value for an Out argument", "put(x + 1.0) #!", E.CallArgNotLHS,
           "argument 'y' of 'put' is Out"),
    inside("member of a result for an Out argument", "put(make().left) #!", E.CallArgNotLHS,
           "argument 'y' of 'put' is Out"),
    inside("In array for an Out argument", "copy(o, a) #!", E.ArgOutNotLValue,
           "'a' is an In array, which is read only"),
    inside("element of an In array for an Out argument", "put(a[0]) #!", E.ArgOutNotLValue,
           "'a' is an In array, which is read only"),
    inside("result that is not used", "square(x) #!", E.SyntaxNotSupported, "is not used",
           "assign it: x = ..."),
    whole("recursion", "def f(x : In[float]) -> float:\n    return f(x) #!\n",
          E.RecursionNotSupported, "'f' calls itself", "write a loop instead"),
    whole("mutual recursion",
          "def f(x : In[float]) -> float:\n    return g(x)\n\n"
          "def g(x : In[float]) -> float:\n    return f(x) #!\n",
          E.RecursionNotSupported, "in a circle: f -> g -> f"),
    whole("recursion through a reverse derivative",
          "def f(x : In[float]) -> float:\n    y : float\n    d(x, y, 1.0)\n    return y\n\n"
          "d = rev_diff(f) #!\n",
          E.RecursionNotSupported, "in a circle: f -> d -> f"),
    whole("recursion through a forward derivative and a call",
          "def f(x : In[_dfloat]) -> _dfloat:\n    return d_g(x)\n\n"
          "def g(x : In[float]) -> float:\n    y : _dfloat\n    return f(y).val #!\n\n"
          "d_g = fwd_diff(g)\n",
          E.RecursionNotSupported, "in a circle: f -> d_g -> g -> f"),
    whole("derivatives of each other", "d = rev_diff(e)\ne = rev_diff(d) #!\n",
          E.RecursionNotSupported, "in a circle: d -> e -> d"),
    whole("struct in itself", "class Q:\n    q : Array[Q, 2] #!\n", E.RecursionNotSupported,
          "a struct contains itself: Q -> Q"),
    whole("struct in itself through a differential", "class Q:\n    q : _dQ #!\n",
          E.RecursionNotSupported, "a struct contains itself: Q -> Q"),
    # ------------------------------------------------------------------------ what may be written
    inside("element of an In array written", "a[0] = 1.0 #!", E.WriteToInArgument,
           "'a' is an In array, which is read only"),
    inside("whole In array written", "a = o #!", E.WriteToInArgument, "'a' is an In array"),
    inside("In array zeroed", "zero(a) #!", E.WriteToInArgument, "'a' is an In array"),
    inside("member of a result assigned", "make().left = 1.0 #!", E.SyntaxNotSupported,
           "this cannot be assigned to", "a variable, an element or a member of one"),
    inside("element of a result assigned", "make().v[0] += 1.0 #!", E.SyntaxNotSupported,
           "this cannot be assigned to"),
    inside("loop counter written", "for i in range(3):;     i = 2 #!", E.WriteToSize,
           "'i' is a loop counter"),
    whole("array of unknown length written at once",
          "def f(a : In[Array[float]], b : Out[Array[float]]):\n    b = a #!\n",
          E.AssignTypeMismatch, "Array[float] has no known length"),
    # ----------------------------------------------------------------------------- type mismatches
    inside("declared as a struct", "p : P = x #!", E.DeclareTypeMismatch,
           "the value of 'p' must be P, found float"),
    inside("declared as an int", "i : int = make() #!", E.DeclareTypeMismatch,
           "must be int, found P"),
    inside("declared as an array", "b : Array[float, 4] = o #!", E.DeclareTypeMismatch,
           "must be Array[float, 4], found Array[float, 3]"),
    inside("float assigned a struct", "x = make() #!", E.AssignTypeMismatch,
           "the value of 'x' must be float, found P"),
    inside("struct assigned a float", "p : P; p = x #!", E.AssignTypeMismatch,
           "must be P, found float"),
    inside("array assigned an array of other length", "o = a #!", E.AssignTypeMismatch,
           "must be Array[float, 3], found Array[float]"),
    inside("array member assigned a float", "p : P; p.v = 1.0 #!", E.AssignTypeMismatch,
           "must be Array[float, 3], found float"),
    inside("struct assigned its differential", "p : P; d : Diff[P]; p = d #!",
           E.AssignTypeMismatch, "must be P, found _dP"),
    inside("struct augmented", "p : P; p += 1.0 #!", E.AssignTypeMismatch,
           "'+=' takes ints, floats and tensors, found P"),
    inside("array augmented", "o *= 2.0 #!", E.AssignTypeMismatch, "found Array[float, 3]"),
    whole("returned struct", "class Q:\n    x : int\n\ndef f(q : In[Q]) -> float:\n"
          "    return q #!\n", E.ReturnTypeMismatch, "the result must be float, found Q"),
    whole("returned number", "class Q:\n    x : int\n\ndef f(x : In[float]) -> Q:\n"
          "    return x #!\n", E.ReturnTypeMismatch, "the result must be Q, found float"),
    whole("too many results", "def f(x : In[float]) -> float:\n    return x, x #!\n",
          E.ReturnTypeMismatch, "'f' has 1 result, but 2 are returned"),
    whole("no result type", "def f(x : In[float]):\n    return x #!\n", E.ReturnTypeMismatch,
          "has no result type but returns a value"),
    whole("array as a result", "def f(x : In[float]) -> Array[float, 3]: #!\n    pass\n",
          E.UnknownType, "a function cannot return an array", "give it an Out[Array[...]]"),
    inside("minus a struct", "x = -make() #!", E.UnaryOpTypeMismatch,
           "'-' takes an int or a float, found P"),
    inside("not an array", "x = not o #!", E.UnaryOpTypeMismatch, "found Array[float, 3]"),
    inside("plus a struct", "x = make() + 1 #!", E.BinaryOpTypeMismatch,
           "'+' takes ints and floats, found P and int"),
    inside("comparison with an array", "x = x < o #!", E.BinaryOpTypeMismatch,
           "found float and Array[float, 3]"),
    inside("and of a struct", "x = make() and x #!", E.BinaryOpTypeMismatch,
           "'and' takes ints and floats"),
    inside("sum of differentials", "b : _dfloat; b = b + b #!", E.BinaryOpTypeMismatch,
           "found _dfloat and _dfloat"),
    inside("choice between structs", "p : P = make() if n else make() #!",
           E.BinaryOpTypeMismatch, "must be ints or floats", "write if / else"),
    inside("too few arguments", "x = square() #!", E.CallTypeMismatch,
           "'square' takes 1 argument (x), found 0"),
    inside("too many arguments", "move(make(), o, x) #!", E.CallTypeMismatch,
           "'move' takes 2 arguments (p, q), found 3"),
    inside("struct for a float", "x = square(make()) #!", E.CallTypeMismatch,
           "argument 'x' of 'square' must be float, found P"),
    inside("float for a struct", "p : P; move(x, p) #!", E.CallTypeMismatch,
           "argument 'p' of 'move' must be P, found float"),
    inside("float for an array", "copy(x, o) #!", E.CallTypeMismatch,
           "must be Array[float], found float"),
    inside("int variable for an Out float", "put(n) #!", E.CallTypeMismatch,
           "argument 'y' of 'put' must be float, found int"),
    whole("array of unknown length for a sized one",
          "def g(v : In[Array[float, 3]]) -> float:\n    return v[0]\n\n"
          "def f(a : In[Array[float]]) -> float:\n    return g(a) #!\n",
          E.CallTypeMismatch, "must be Array[float, 3], found Array[float]"),
    inside("struct for a built-in function", "x = sin(make()) #!", E.CallTypeMismatch,
           "'sin' takes ints and floats here, found P"),
    inside("wrong count for a built-in function", "x = pow(x) #!", E.CallTypeMismatch,
           "'pow' takes 2 arguments, found 1"),
    inside("float for a differential", "x = d_square(x).val #!", E.CallTypeMismatch,
           "argument 'x' of 'd_square' must be _dfloat, found float"),
    inside("reverse derivative without its seed", "b : float; r_square(x, b) #!",
           E.CallTypeMismatch, "'r_square' takes 3 arguments (x, _d_x, _d_result), found 2"),
    inside("element of a float", "x = x[0] #!", E.ArrayAccessTypeMismatch,
           "float has no elements"),
    inside("element of a struct", "x = make()[0] #!", E.ArrayAccessTypeMismatch,
           "P has no elements"),
    inside("element of an element", "x = a[0][1] #!", E.ArrayAccessTypeMismatch,
           "float has no elements"),
    inside("float subscript", "x = a[x] #!", E.ArrayAccessTypeMismatch,
           "a subscript is an int, found float", "convert it: float2int(x)"),
    inside("struct subscript", "x = a[make()] #!", E.ArrayAccessTypeMismatch, "found P"),
    inside("two subscripts", "x = a[0, 1] #!", E.ArrayAccessTypeMismatch,
           "one subscript at a time", "write a[i][j]"),
    inside("constant subscript outside", "x = o[3] #!", E.SubscriptOutOfRange,
           "the subscript 3 is outside dimension 0 of 'o'", "the last one is 2"),
    inside("negative subscript", "x = o[-1] #!", E.SubscriptOutOfRange, "the subscript -1"),
    inside("member of a float", "x = x.left #!", E.StructAccessTypeMismatch,
           "'.left' needs a struct, found float"),
    inside("member of an array", "x = o.left #!", E.StructAccessTypeMismatch,
           "found Array[float, 3]"),
    inside("struct as the condition of if", "if make(): #!;     pass", E.IfCondTypeMismatch,
           "the condition of 'if' is an int or a float, found P"),
    inside("array as the condition of elif", "if x:;     pass; elif o: #!;     pass",
           E.IfCondTypeMismatch, "found Array[float, 3]"),
    inside("struct as the condition of a choice", "x = 1 if make() else 2 #!",
           E.IfCondTypeMismatch, "found P"),
    inside("struct as the condition of while",
           "while (make(), max_iter := 3): #!;     pass", E.WhileCondTypeMismatch,
           "the condition of 'while' is an int or a float, found P"),
    inside("float as the range of a loop", "for i in range(x): #!;     pass", E.TypeMismatch,
           "the bound of a loop must be an int, found float"),
    # ------------------------------------------------------------------------------------- loops
    inside("while without max_iter", "while x < 1: #!;     x = x + 1", E.SyntaxNotSupported,
           "'while' needs a constant bound", "while (condition, max_iter := 100):"),
    inside("while with a misspelt max_iter", "while (x < 1, max_it := 3): #!;     pass",
           E.SyntaxNotSupported, "'while' needs a constant bound"),
    inside("max_iter that is a variable", "while (x < 1, max_iter := n): #!;     pass",
           E.SyntaxNotSupported, "max_iter is a positive whole number"),
    inside("max_iter of zero", "while (x < 1, max_iter := 0): #!;     pass",
           E.SyntaxNotSupported, "max_iter is a positive whole number"),
    inside("negative max_iter", "while (x < 1, max_iter := -3): #!;     pass",
           E.SyntaxNotSupported, "max_iter is a positive whole number"),
    inside("max_iter that is a float", "while (x < 1, max_iter := 2.5): #!;     pass",
           E.SyntaxNotSupported, "max_iter is a positive whole number"),
    inside("range with four bounds", "for i in range(1, 3, 1, 1): #!;     pass",
           E.SyntaxNotSupported, "a range has one to three bounds, found 4"),
    inside("range with a step of 0", "for i in range(1, 3, 0): #!;     pass",
           E.SyntaxNotSupported, "the step of a range is 0"),
    inside("range that is too long", "for i in range(-2147483647, 2147483647): #!;     pass",
           E.SyntaxNotSupported, "a range of 4294967294 values is too long"),
    inside("assignment to a counter with a start", "for i in range(1, n):;     i = 2 #!",
           E.WriteToSize, "'i' is a loop counter"),
    inside("counter with a start after its loop", "for i in range(1, n):;     pass; x = i #!",
           E.UndeclaredVariable, "'i' is not declared"),
    inside("length of no range", "k = len(x) #!", E.CallIDNotFound, "there is no function 'len'"),
    inside("break", "while (x, max_iter := 3):;     break #!", E.SyntaxNotSupported,
           "'break' is not part of loma"),
    inside("large number", "x = 3000000000 #!", E.SyntaxNotSupported,
           "this whole number needs more than 32 bits", "as a float it is 3000000000.0"),
    inside("reduction over no tensor", "x = max(a[i] for i in range(n)) #!",
           E.SyntaxNotSupported, "a reduction is over elements of tensors"),
    # -------------------------------------------------------------------------------------- simd
    inside("thread_id outside simd", "n = thread_id() #!", E.SimdMisuse,
           "known only in a @simd function", "pass it as an argument"),
    inside("call of a simd function", "each(o) #!", E.SimdMisuse,
           "'each' is a @simd function, which only the host calls"),
    inside("call of a simd function's derivative", "r_each(o) #!", E.SimdMisuse,
           "'r_each' is a @simd function"),
    whole("simd with a result", "@simd\ndef f(x : In[float]) -> float: #!\n    return x\n",
          E.SimdMisuse, "has no result"),
    whole("simd with a tensor", "@simd\ndef f(x : In[Tensor[N]]): #!\n    pass\n", E.SimdMisuse,
          "argument 'x' of the @simd function 'f' is a tensor"),
    whole("simd twice", "@simd\n@simd #!\ndef f(x : In[float]):\n    pass\n",
          E.SyntaxNotSupported, "the only decorator"),
    whole("another decorator", "@jit #!\ndef f(x : In[float]):\n    pass\n",
          E.SyntaxNotSupported, "the only decorators of a function are '@simd' and"),
    inside("atomic_add to a value", "atomic_add(x + 1.0, x) #!", E.CallArgNotLHS,
           "'atomic_add' writes to its argument, which must be a place"),
    inside("atomic_add to a result", "atomic_add(square(x), x) #!", E.CallArgNotLHS,
           "must be a place"),
    inside("atomic_add to an In array", "atomic_add(a[0], x) #!", E.WriteToInArgument,
           "'a' is an In array"),
    inside("atomic_add to an array", "atomic_add(o, x) #!", E.CallTypeMismatch,
           "'atomic_add' adds to an int or a float, found Array[float, 3]"),
    inside("atomic_add of a struct", "atomic_add(x, make()) #!", E.CallTypeMismatch,
           "'atomic_add' adds an int or a float, found P"),
    inside("atomic_add of a float to an int", "atomic_add(n, x) #!", E.CallTypeMismatch,
           "cannot add a float to an int", "convert it: float2int(x)"),
    inside("atomic_add of nothing", "atomic_add(x) #!", E.CallTypeMismatch,
           "takes a place and a value, found 1 argument"),
    inside("atomic_add in an expression", "x = atomic_add(x, 1.0) #!", E.SyntaxNotSupported,
           "is a statement of its own"),
    # -------------------------------------------------------------------------------- derivatives
    inside("Diff of a tensor", "b : Diff[Tensor[3]] #!", E.UnknownType,
           "Diff takes a type of the scalar layer, found Tensor[3]"),
    inside("Diff of nothing", "b : Diff #!", E.UnknownType, "Diff needs the type", "Diff[float]"),
    inside("Diff of two types", "b : Diff[float, int] #!", E.UnknownType, "this is no type"),
    inside("Diff of an argument", "b : Diff[In[float]] #!", E.UnknownType,
           "stand only around the type of an argument"),
    inside("make__dfloat with one argument", "b : _dfloat = make__dfloat(x) #!",
           E.CallTypeMismatch, "'make__dfloat' takes 2 arguments (val, dval), found 1"),
    inside("make__dfloat of a struct", "b : _dfloat = make__dfloat(x, make()) #!",
           E.CallTypeMismatch, "argument 'dval' of 'make__dfloat' must be float, found P"),
    inside("make__dfloat with a keyword", "b : _dfloat = make__dfloat(x, dval=x) #!",
           E.CallTypeMismatch, "takes its arguments by position"),
    inside("make__dfloat for a float", "x = make__dfloat(x, 1.0) #!", E.AssignTypeMismatch,
           "must be float, found _dfloat"),
    inside("misspelt make__dfloat", "b : _dfloat = make__dflaot(x, x) #!", E.CallIDNotFound,
           "no function 'make__dflaot'", "did you mean 'make__dfloat'?"),
    inside("make of an ordinary struct", "p : P = make_P(x) #!", E.CallIDNotFound,
           "no function 'make_P'", "declare a variable, x : P, and assign its members"),
    inside("make of a struct with an array", "d : _dP = make__dP(x, x, x) #!",
           E.CallTypeMismatch, "member 'v' of '_dP' is an array"),
    whole("derivative of an unknown function",
          "def square(x : In[float]) -> float:\n    return x * x\n\nd = rev_diff(sqare) #!\n",
          E.CallIDNotFound, "there is no function 'sqare'", "did you mean 'square'?"),
    whole("derivative of two functions",
          "def f(x : In[float]) -> float:\n    return x\n\nd = fwd_diff(f, f) #!\n",
          E.SyntaxNotSupported, "'fwd_diff' takes the name of one function"),
    whole("derivative of a value",
          "def f(x : In[float]) -> float:\n    return x\n\nd = rev_diff(f(1.0)) #!\n",
          E.SyntaxNotSupported, "'rev_diff' takes the name of one function"),
    whole("misspelt derivative",
          "def f(x : In[float]) -> float:\n    return x\n\nd = rev_dif(f) #!\n",
          E.SyntaxNotSupported, "only derivatives are assigned at the top level"),
    inside("derivative inside a function", "x = rev_diff(square) #!", E.SyntaxNotSupported,
           "stands at the top level of the file only"),
    # ------------------------------------------------------------------------------------- stacks
    inside("wrong type pushed", "s : Stack[float]; s.push(n) #!", E.CallTypeMismatch,
           "'s' is Stack[float], and int is pushed"),
    inside("pop inside an expression", "s : Stack[float]; x = s.pop() + 1.0 #!",
           E.SyntaxNotSupported, "stands only as an assignment of its own", "x = s.pop()"),
    inside("pop without a target", "s : Stack[float]; s.pop() #!", E.SyntaxNotSupported,
           "stands only as an assignment of its own"),
    inside("pop in a declaration", "s : Stack[float]; b : float = s.pop() #!",
           E.SyntaxNotSupported, "stands only as an assignment of its own"),
    inside("pop into another type", "s : Stack[float]; n = s.pop() #!", E.AssignTypeMismatch,
           "the target is int, and 's' is Stack[float]"),
    inside("stack as a value", "s : Stack[float]; x = s #!", E.TypeMismatch,
           "a stack, which has no value of its own"),
    inside("stack as an argument", "s : Stack[float]; x = square(s) #!", E.TypeMismatch,
           "a stack, which has no value of its own"),
    inside("other method of a stack", "s : Stack[float]; s.peek() #!", E.SyntaxNotSupported,
           "a stack has no 'peek'"),
    inside("stack with a value", "s : Stack[float] = 1.0 #!", E.DeclareTypeMismatch,
           "starts empty"),
    inside("stack in a branch", "if x:;     s : Stack[float] #!", E.DeclarationNotOutmostLevel,
           "'s' is declared inside"),
    inside("stack without a constant capacity", "s : Stack[float, n] #!", E.UnknownType,
           "the size of a Stack is a positive constant"),
    whole("stack as a parameter", "def f(s : In[Stack[float]]): #!\n    pass\n", E.UnknownType,
          "a Stack is a local variable only"),
    whole("stack in a struct", "class Q:\n    s : Stack[float] #!\n", E.UnknownType,
          "a Stack is a local variable only"),
)  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_mistake(mistake: Mistake) -> None:
    with pytest.raises(errors.UserError) as caught:
        parse(mistake.program, "p.loma")
    error = caught.value
    assert type(error) is mistake.error
    assert mistake.words in error.message
    assert mistake.hint is None or mistake.hint in (error.hint or "")
    lines = [k for k, line in enumerate(mistake.program.split("\n"), 1) if line.endswith("#!")]
    assert [error.lineno] == lines
    assert error.to_string().startswith(f"p.loma:{lines[0]}:")


def test_the_head_is_right() -> None:
    assert parse(HEAD).functions


# ---------------------------------------------------- attributes of the teaching compiler's errors


def _caught(program: str, kind: type[errors.UserError]) -> errors.UserError:
    with pytest.raises(kind) as caught:
        parse(program)
    return caught.value


def test_attributes_of_names() -> None:
    error = _caught("def f(x) -> float:\n    return x\n", errors.FuncArgNotAnnotated)
    assert (error.arg, error.arg.arg, error.arg.lineno) == ("x", "x", 1)
    error = _caught("def f() -> float:\n    return (1.0 +\n        b)\n", errors.UndeclaredVariable)
    assert (error.var, error.var.id, error.var.lineno) == ("b", "b", 3)
    error = _caught(
        "def f(x : In[float]) -> float:\n    y : float\n    x : int\n    return x\n",
        errors.DuplicateVariable,
    )
    assert error.var == "x"
    assert error.first_declare_stmt.lineno == 1
    assert error.duplicate_declare_stmt.lineno == 3


@pytest.mark.parametrize(
    ("body", "kind", "line"),
    [
        ("if x > 0:\n        return x\n    x = 2", errors.ReturnNotLastStmt, 5),
        ("a : Array[float]", errors.DeclareUnboundedArray, 4),
        ("if x:\n        y : int", errors.DeclarationNotOutmostLevel, 5),
        ("x = (1.0 +\n        put(x))", errors.CallWithOutArgNotInCallStmt, 4),
        ("x = p(\n        x)", errors.CallIDNotFound, 4),
    ],
)
def test_the_statement_of_an_error(body: str, kind: type[errors.UserError], line: int) -> None:
    """``stmt`` is the whole statement, ``expr`` and ``node`` what in it is wrong."""
    program = f"def put(x : Out[float]):\n    x = 1\ndef f(x : In[float]):\n    {body}\n"
    error = _caught(program, kind)
    assert error.stmt.lineno == line
    assert error.node.lineno == error.expr.lineno == error.lineno >= line
