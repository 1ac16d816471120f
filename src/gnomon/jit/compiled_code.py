"""Compiled code on disk, which may be damaged, full, read-only or not there at all: then it is compiled again.

Numba's own cache trusts its files and wants to write. This one checks every file by its hash, forgets what is damaged,
uses a folder that can only be read, and says once when nothing can be kept. Imported by `gnomon.jit` when
something is compiled.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: processes that start together compile the same.
    fcntl = None  # type: ignore[assignment]

from llvmlite.binding import parse_bitcode
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import compile_result
from numba.core.entrypoints import init_all
from numba.core.environment import Environment, lookup_environment
from numba.core.runtime import rtsys

from gnomon.core.cache_folder import compiled_code_folder, warn_once


def kept(function: Any) -> Any:
    """Where the compiled code of a function is kept: on disk, or nowhere if it has no file or there is no folder."""
    folder = compiled_code_folder()
    has_source = os.path.exists(inspect.getfile(function))
    return _Kept(function) if folder is not None and has_source else NullCache()


WAIT_S = 300.0  # How long a process waits for another that compiles the same function.


@contextmanager
def one_at_a_time(cache: Any) -> Iterator[None]:
    """Of processes that miss the same function on disk one compiles it, and the others wait for its code."""
    try:
        yield
    finally:
        if isinstance(cache, _Kept):
            cache.let_others()


class _Place:
    """Where the code of one function lies; what Numba calls a locator."""

    def __init__(self, function: Any, file: str) -> None:
        self.file, self.line = Path(file).resolve(), function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Any, file: str) -> _Place:
        return cls(function, file)

    def get_cache_path(self) -> str:
        folder = compiled_code_folder()
        assert folder is not None
        package = Path(__file__).parent.parent
        if self.file.is_relative_to(package):
            return str(folder / "-".join(("gnomon", *self.file.parent.relative_to(package).parts)))
        path_hash = hashlib.sha256(str(self.file.parent).encode()).hexdigest()[:16]
        return str(folder / f"{self.file.parent.name}_{path_hash}")

    def ensure_cache_path(self) -> None:
        os.makedirs(self.get_cache_path(), exist_ok=True)

    def get_source_stamp(self) -> str:
        return _hash_of(self.file)

    def get_disambiguator(self) -> str:
        return str(self.line)


@cache
def _hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class _Loaded(JITCodeLibrary):  # type: ignore[misc]
    """Machine code from the disk. What it was made from is unpacked only where something links it in."""

    packed: bytes
    _shared_module: Any

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = parse_bitcode(zlib.decompress(self.packed))
        return self._shared_module


class _Reduced(CompileResultCacheImpl):  # type: ignore[misc]
    """What of compiled code is kept. Numba would read in what it was made from, and import every module that a part of
    it was written in, of its own many: that takes longer than all the rest."""

    _locator_classes = (_Place,)

    def reduce(self, cres: Any) -> Any:
        """The parts of it."""
        library, fndesc = cres.library, cres.fndesc
        module = library._get_module_for_linking()
        called = {fndesc.llvm_func_name, fndesc.llvm_cpython_wrapper_name, fndesc.llvm_cfunc_wrapper_name}
        defined = called & {one.name for one in module.functions if not one.is_declaration}
        fndesc.typemap = fndesc.calltypes = None
        environments = (cres.environment, *cres._find_referenced_environments())
        told = [(one.globals.get("__name__"), one.consts, one.env_name) for one in environments]
        packed = zlib.compress(module.as_bitcode(), 1)
        return library.name, library._get_compiled_object(), packed, defined, fndesc, cres.signature, told

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """From these parts."""
        name, code, packed, defined, fndesc, signature, told = payload
        codegen = target_context.codegen()
        library = _Loaded(codegen, name)
        library.packed = packed
        library.enable_object_caching()
        library._set_compiled_object(code)
        library._finalize_final_module()
        codegen._engine._defined_symbols |= defined
        own, *others = [_environment(*one) for one in told]
        entry = target_context.get_executable(library, fndesc, own)
        for one in others:
            codegen.set_env(one.env_name, one)
        return compile_result(
            target_context=target_context, typing_context=target_context.typing_context, library=library,
            environment=own, entry_point=entry, fndesc=fndesc, signature=signature, objectmode=False, lifted=(),
            reload_init=(), referenced_envs=others,
        )  # fmt: skip


def _environment(module: str, constants: list[Any], name: str) -> Any:
    """What compiled code looks constants up in; globals, which it does not, are those of a module that is there."""
    found = lookup_environment(name)
    if found is None:
        known = sys.modules.get(module)
        found = Environment._memo[name] = Environment({"__name__": module} if known is None else vars(known))
        found.consts[:], found.env_name = constants, name
    return found


class _CheckedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """Data files that begin with their hash: machine code with a changed bit would crash, or worse, not crash.

    They are named by it too, and written before the index that names them: processes that compile the same function
    for other types at the same time never write each other's files, as those that are numbered do.
    """

    def save(self, key: Any, data: Any) -> None:
        content = self._dump(data)
        digest = hashlib.blake2b(content, digest_size=32)
        name = f"{self._index_name.removesuffix('.nbi')}.{digest.hexdigest()[:16]}.nbc"
        with self._open_for_write(self._data_path(name)) as file:
            file.write(digest.digest() + content)
        self._save_index(self._load_index() | {key: name})

    def _load_data(self, name: str) -> Any:
        stored = Path(self._data_path(name)).read_bytes()
        digest, content = stored[:32], stored[32:]
        if hashlib.blake2b(content, digest_size=32).digest() != digest:
            raise ValueError("its content has changed")
        return pickle.loads(content)


class _Kept(FunctionCache):  # type: ignore[misc]
    """The code of one function on disk."""

    _impl_class = _Reduced

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        place = self._impl.locator
        self._cache_file: Any = _CheckedFiles(
            place.get_cache_path(), self._impl.filename_base, place.get_source_stamp()
        )
        self._turn: Any = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code, or None where it is not there or damaged.

        Numba would first read in all that it knows to compile, and SciPy with it: code from the disk needs its runtime
        alone, and what compiles after all reads that in by itself.
        """
        try:
            rtsys.initialize(target_context)
            found = self._load_overload(sig, target_context)
            if found is None and self._has_waited():
                found = self._load_overload(sig, target_context)
            if found is not None:
                return found
        except OSError as error:
            warn_once(f"compiled code in {self._cache_path} cannot be read: {error.strerror or error}; compiling.")
        except Exception as error:
            warn_once(f"compiled code in {self._cache_path} is damaged ({type(error).__name__}); compiling it again.")
            self._forget()
        init_all()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the code where that is possible."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            reason = error.strerror or error
            warn_once(
                f"compiled code cannot be kept in {self._cache_path}: {reason}. It is compiled in memory, every time. "
                "Set GNOMON_CACHE to a folder that can be written."
            )
            self._forget()

    def _has_waited(self) -> bool:
        """Take the turn to compile; whether another process had it until now."""
        if fcntl is None or self._turn is not None or not self._enabled:
            return False
        began = time.monotonic()
        with suppress(OSError):
            self._impl.locator.ensure_cache_path()
            self._turn = os.open(f"{self._cache_file._index_path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            while True:
                try:
                    fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() - began > WAIT_S:
                        break
                    time.sleep(0.05)
        return self._turn is not None

    def let_others(self) -> None:
        """The turn to compile is over."""
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None

    def _forget(self) -> None:
        """Remove the index: what it points to is written again."""
        try:
            os.unlink(self._cache_file._index_path)
        except OSError:
            if not sys.is_finalizing():
                self.disable()
