"""Functions that are linked before they are optimised.

Numba optimises every function together with all that it calls, and makes machine code of it, before it does the same
for its caller: what lies at the bottom is optimised as often as the calls are deep. The functions that only compiled
code calls (`gnomon.jit.inlined`) are parts, kept as they were written down first; the ones that Python or a pointer
calls link all their parts in, each once, and are optimised as a whole.
"""

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite.ir.values import ArgumentAttributes
from numba import njit
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher
from numba.core.types import unliteral  # type: ignore[attr-defined]

from gnomon.jit.compiled_code import one_at_a_time

_NOT_KEPT = "captures(none)" if "captures(none)" in ArgumentAttributes._known else "nocapture"
"""Nobody keeps this address; as this version of LLVM says it."""


class Part(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function that becomes machine code only as a part of others."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.environments: dict[str, Any] = {}
        """Where Numba's runtime finds the globals of a function, by the name that the code calls it."""

    def add_ir_module(self, module: Any) -> None:
        """Add code. Nobody keeps the address of a bundle (see `gnomon.jit.borrow`): knowing that, the optimiser need
        not read from it again what it has read once."""
        for function in module.functions:
            for argument in function.args:
                if argument.type == cgutils.voidptr_t:
                    argument.add_attribute(_NOT_KEPT)
        super().add_ir_module(module)

    def finalize(self) -> None:
        """Nothing more is added."""
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """It has no address."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """Numba sets the environment here, for machine code that there is none of yet."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Remember it for those that link this part in."""
        self.environments[name] = environment

    def own_module(self) -> Any:
        """The code of this function alone, to be linked into others."""
        return super()._get_module_for_linking()

    def _get_module_for_linking(self) -> Any:
        module = self.own_module().clone()
        for library in _with_parts(self._linking_libraries):
            module.link_in(_module(library), preserve=True)
        return module


def _with_parts(libraries: Iterable[Any]) -> list[Any]:
    """These libraries, and all that the parts among them call, each once, and before all that it calls: LLVM leaves out
    of a module what nothing has asked for yet."""
    seen: set[Any] = set()
    callees_first: list[Any] = []

    def visit(library: Any) -> None:
        if library in seen:
            return
        seen.add(library)
        for callee in library._linking_libraries if isinstance(library, Part) else ():
            visit(callee)
        callees_first.append(library)

    for library in libraries:
        visit(library)
    return callees_first[::-1]


def _module(library: Any) -> Any:
    return library.own_module() if isinstance(library, Part) else library._get_module_for_linking()


class Whole(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function that is called from outside, with all that it calls."""

    def finalize(self) -> None:
        """Link everything, then optimise."""
        libraries = _with_parts(self._linking_libraries)
        self._linking_libraries: Any = []
        for library in libraries:
            self._final_module.link_in(_module(library), preserve=True)
        super().finalize()
        for library in libraries:
            for name, environment in getattr(library, "environments", {}).items():
                if self._codegen._engine.is_symbol_defined(name):
                    self._codegen.set_env(name, environment)


class _Compiler(Compiler):  # type: ignore[misc]
    kind: Any = JITCodeLibrary

    def compile_extra(self, function: Any) -> Any:
        """Compile into a library of this class."""
        code = self.kind(self.state.targetctx.codegen(), function.__qualname__)
        code.enable_object_caching()
        self.state["library"] = code
        return super().compile_extra(function)


class PartCompiler(_Compiler):
    """Compiles what others link in."""

    kind = Part


class PartDispatcher(CPUDispatcher):  # type: ignore[misc]
    """What Numba knows of a part."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """One variant for all numbers of a type: a constant is no type of its own."""
        return super().get_call_template([unliteral(one) for one in args], {k: unliteral(v) for k, v in kws.items()})


class FeatureDispatcher(PartDispatcher):
    """A part that is left out of runs without features: an empty one stands in its place."""

    left_out: Any

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What a call with arguments of these types is compiled to."""
        return self._chosen((*args, *kws.values())).get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """The code of it."""
        return self._chosen(sig).get_overload(sig)

    def _chosen(self, kinds: Any) -> Any:
        bundles = (getattr(kind, "instance_class", None) for kind in kinds)
        is_left_out = any(getattr(one, "has_no_features", False) for one in bundles)
        return self.left_out if is_left_out else super()


_NOTHING = {"None": "None", "bool": "False", "int": "0", "float": "0.0"}
"""What a feature that is left out answers, by the type that it is written with."""


def part(
    function: Callable[..., Any], is_inlined: bool = False, is_feature: bool = False, error_model: str = "numpy"
) -> Any:
    """A function for Numba, as a part of its callers."""
    dispatcher = njit(
        error_model=error_model, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=is_inlined,
        pipeline_class=PartCompiler,
    )(function)  # fmt: skip
    dispatcher.__class__ = FeatureDispatcher if is_feature else PartDispatcher
    if is_feature:
        names = ", ".join(function.__code__.co_varnames[: function.__code__.co_argcount])
        kind = function.__annotations__["return"]
        made: dict[str, Any] = {}
        exec(f"def left_out({names}): return {_NOTHING[getattr(kind, '__name__', str(kind))]}", made)
        dispatcher.left_out = part(made["left_out"], is_inlined=True)
    return dispatcher


class KeptDispatcher(CPUDispatcher):  # type: ignore[misc]
    """One whose code is kept on disk."""

    def _compilation_chain_init_hook(self) -> None:
        """Numba would look here for its extensions among all packages that are installed: the cache does where it
        has no code (`gnomon.jit.compiled_code`)."""

    def compile(self, sig: Any) -> Any:
        """Look for its code there, or compile it while no other process does."""
        with one_at_a_time(self._cache):
            return super().compile(sig)


class WholeCompiler(_Compiler):
    """Compiles what is called from outside."""

    kind = Whole


class Pointer(CFunc):
    """A compiled function that compiled code calls by its address."""

    _cache: Any

    def compile(self) -> None:
        """Look for its code on disk, or compile it while no other process does."""
        with one_at_a_time(self._cache):
            super().compile()

    def __wrapper_address__(self) -> Any:
        """Where it is. Without this, Numba compares signatures whenever one is passed to compiled code."""
        return self.address


class PointerCompiler(WholeCompiler):
    """Compiles what is called through a pointer: its arguments lie apart, and nobody keeps their addresses."""

    def compile_extra(self, function: Any) -> Any:
        """Compile, and tell the optimiser so."""
        self.state.flags.noalias = True
        return super().compile_extra(function)
