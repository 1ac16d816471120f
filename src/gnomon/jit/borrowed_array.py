"""The Numba types behind `gnomon.jit.borrow`: a pointer and a shape, and bundles of them that go by their address.
Imported only when something is compiled."""

import hashlib
import operator
import sys
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.lowering import Lower
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import (
    intrinsic,
    lower_builtin,
    lower_getattr,
    lower_getattr_generic,
    models,
    overload,
    register_model,
)  # fmt: skip

from gnomon.jit.markers import borrow, first_rows, is_checked


class Borrowed(types.Type):  # type: ignore[misc]
    """An array of `ndim` dimensions, C-contiguous, that belongs to somebody else."""

    def __init__(self, dtype: Any, ndim: int, is_checked: bool = False) -> None:
        self.dtype, self.ndim, self.is_checked = dtype, ndim, is_checked
        super().__init__(name=f"{'Checked' if is_checked else 'Borrowed'}({dtype}, {ndim}d)")

    @property
    def mangling_args(self) -> Any:
        """What stands in the names of compiled functions: records have hundreds of fields."""
        return _short_name(self), ()


@register_model(Borrowed)
class BorrowedModel(models.StructModel):  # type: ignore[misc]
    """How it lies in registers: an address and the extents."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [("data", types.voidptr), ("shape", types.UniTuple(types.intp, kind.ndim))])


class Bundle(types.Type):  # type: ignore[misc]
    """A named tuple that goes by its address, so that a call of a function with it passes one number, not hundreds.

    It lies where it was borrowed and lives as long as the function that did so.
    """

    def __init__(self, kinds: Any, instance_class: Any) -> None:
        self.types, self.fields, self.instance_class = tuple(kinds), instance_class._fields, instance_class
        inside = ", ".join(f"{field}={kind}" for field, kind in zip(self.fields, self.types, strict=True))
        # Its name stands in that of every type it is in, and in those of compiled functions: records have many fields.
        super().__init__(name=f"{instance_class.__name__}({hashlib.sha256(inside.encode()).hexdigest()[:16]})")


register_model(Bundle)(models.OpaqueModel)


class Wide(types.Record):  # type: ignore[misc]
    """A record whose small integers are read as 64 bits: sums and products of them do not overflow, and functions are
    compiled for one kind of integer."""

    def __init__(self, record: Any) -> None:
        fields = [(name, field._asdict()) for name, field in record.fields.items()]
        super().__init__(fields, record.size, record.aligned)


register_model(Wide)(models.RecordModel)


def _widened(kind: Any) -> Any:
    if not isinstance(kind, types.Record):
        return kind
    stored = (kind.typeof(name) for name in kind.fields)
    return Wide(kind) if any(isinstance(one, types.Integer) and one.bitwidth < 64 for one in stored) else kind


@infer_getattr
class WideAttributes(AttributeTemplate):  # type: ignore[misc]
    """The fields of the record."""

    key = Wide

    def generic_resolve(self, record: Any, name: str) -> Any:
        """The type of a field, as it is read and written."""
        if name not in record.fields:
            return None
        kind = record.typeof(name)
        return types.int64 if isinstance(kind, types.Integer) else kind


@lower_getattr_generic(Wide)  # type: ignore[untyped-decorator]
def _wide_field(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    stored = kind.typeof(name)
    address = cgutils.get_record_member(builder, value, kind.offset(name), context.get_data_type(stored))
    found = context.unpack_value(builder, stored, address)
    return context.cast(builder, found, stored, types.int64) if isinstance(stored, types.Integer) else found


@cache
def _short_name(kind: Any) -> str:
    return f"{type(kind).__name__}_{hashlib.sha256(kind.name.encode()).hexdigest()[:16]}"


def borrowed(kind: Any) -> Any:
    """The type of a bundle once its arrays are borrowed."""
    if isinstance(kind, types.Array):
        return Borrowed(_widened(kind.dtype), kind.ndim)
    if isinstance(kind, types.BaseTuple) and hasattr(kind, "instance_class"):
        return Bundle([borrowed(inner) for inner in kind.types], kind.instance_class)
    return kind


# borrow(bundle)
@infer_global(borrow)
class Borrow(AbstractTemplate):  # type: ignore[misc]
    """Arrays become borrowed arrays, named tuples bundles."""

    def generic(self, args: Any, kws: Any) -> Any:
        """The type of `borrow(bundle)`."""
        return signature(borrowed(args[0]), *args)


@lower_builtin(borrow, types.Any)  # type: ignore[untyped-decorator]
def _borrow(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _lend(context, builder, sig.args[0], args[0])


def _lend(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        view = cgutils.create_struct_proxy(borrowed(kind))(context, builder)
        view.data = builder.bitcast(array.data, cgutils.voidptr_t)
        view.shape = array.shape
        return view._getvalue()
    if isinstance(kind, types.BaseTuple) and hasattr(kind, "instance_class"):
        with builder.goto_entry_block():  # Not filled with zeros: every field is written below.
            bundle = builder.alloca(_layout(context, borrowed(kind)))
        for i, inner in enumerate(kind.types):
            item = _lend(context, builder, inner, builder.extract_value(value, i))
            builder.store(item, cgutils.gep_inbounds(builder, bundle, 0, i))
        return builder.bitcast(bundle, cgutils.voidptr_t)
    return value


def _layout(context: Any, bundle: Bundle) -> Any:
    return ir.LiteralStructType([context.get_value_type(kind) for kind in bundle.types])


# bundle.field
@infer_getattr
class BundleAttributes(AttributeTemplate):  # type: ignore[misc]
    """The fields of the named tuple."""

    key = Bundle

    def generic_resolve(self, bundle: Any, name: str) -> Any:
        """The type of a field."""
        return bundle.types[bundle.fields.index(name)] if name in bundle.fields else None


@lower_getattr_generic(Bundle)  # type: ignore[untyped-decorator]
def _field(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    bundle = builder.bitcast(value, _layout(context, kind).as_pointer())
    return builder.load(cgutils.gep_inbounds(builder, bundle, 0, kind.fields.index(name)))


# checked(bundle)
@intrinsic  # type: ignore[untyped-decorator]
def checked(typing: Any, bundle: Any) -> Any:
    """A bundle's borrowed arrays with every index checked: one out of range raises IndexError, also a negative one."""
    return _checked(bundle)(bundle), lambda context, builder, sig, args: args[0]


def _checked(kind: Any) -> Any:
    if isinstance(kind, Borrowed):
        return Borrowed(kind.dtype, kind.ndim, is_checked=True)
    if isinstance(kind, Bundle):
        return Bundle([_checked(inner) for inner in kind.types], kind.instance_class)
    return kind


@overload(is_checked, strict=False)  # type: ignore[untyped-decorator]
def _is_checked(bundle: Any) -> Any:
    answer = any(isinstance(kind, Borrowed) and kind.is_checked for kind in bundle.types)
    return (lambda bundle: True) if answer else (lambda bundle: False)


def _line_being_compiled() -> Any:
    """Where in the source the instruction stands that Numba lowers right now; None if that cannot be told."""
    frame = sys._getframe()
    while frame is not None:
        lowering = frame.f_locals.get("self")
        if isinstance(lowering, Lower):
            return lowering.loc
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _check(context: Any, builder: Any, index: Any, extent: Any) -> None:
    """Raise IndexError unless 0 <= index < extent (one unsigned comparison)."""
    with cgutils.if_unlikely(builder, builder.icmp_unsigned(">=", index, extent)):
        context.call_conv.return_user_exc(
            builder, IndexError, ("an index is out of range",), _line_being_compiled(), builder.function.name
        )


# first_rows(view, count)
@intrinsic  # type: ignore[untyped-decorator]
def _shorten(typing: Any, view: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        short = cgutils.create_struct_proxy(sig.args[0])(context, builder, value=args[0])
        extent = context.cast(builder, args[1], sig.args[1], types.intp)
        short.shape = builder.insert_value(short.shape, extent, 0)
        return short._getvalue()

    return view(view, count), generate


@overload(first_rows, strict=False)  # type: ignore[untyped-decorator]
def _first_rows(view: Any, count: Any) -> Any:
    return lambda view, count: _shorten(view, count)


# view[i], view[i, j], view[i] = value
def _num_indices(index: Any) -> int:
    return len(index) if isinstance(index, types.BaseTuple) else 1


@infer_global(operator.getitem)
class GetItem(AbstractTemplate):  # type: ignore[misc]
    """As many indices as dimensions give an element, fewer give a row."""

    def generic(self, args: Any, kws: Any) -> Any:
        """The type of `view[index]`."""
        view, index = args
        if not isinstance(view, Borrowed):
            return None
        left = view.ndim - _num_indices(index)
        return signature(view.dtype if left == 0 else Borrowed(view.dtype, left, view.is_checked), view, index)


@infer_global(operator.setitem)
class SetItem(AbstractTemplate):  # type: ignore[misc]
    """Only elements can be written."""

    def generic(self, args: Any, kws: Any) -> Any:
        """The type of `view[index] = value`."""
        view, index, _ = args
        if not isinstance(view, Borrowed) or _num_indices(index) != view.ndim:
            return None
        return signature(types.none, view, index, view.dtype)


def _item_bytes(dtype: Any) -> int:
    return int(dtype.size if isinstance(dtype, types.Record) else dtype.bitwidth // 8)


def _locate(context: Any, builder: Any, kind: Any, value: Any, index_kind: Any, index: Any) -> tuple[Any, Any]:
    """The address of an element or row, and the extents that the indices leave."""
    view = cgutils.create_struct_proxy(kind)(context, builder, value=value)
    shape = cgutils.unpack_tuple(builder, view.shape, kind.ndim)
    is_tuple = isinstance(index_kind, types.BaseTuple)
    kinds = list(index_kind.types) if is_tuple else [index_kind]
    given = cgutils.unpack_tuple(builder, index, len(kinds)) if is_tuple else [index]
    offset = ir.Constant(context.get_value_type(types.intp), 0)
    for axis in range(kind.ndim):
        if axis:
            offset = builder.mul(offset, shape[axis])
        if axis < len(given):
            position = context.cast(builder, given[axis], kinds[axis], types.intp)
            if kind.is_checked:
                _check(context, builder, position, shape[axis])
            offset = builder.add(offset, position)
    offset = builder.mul(offset, ir.Constant(offset.type, _item_bytes(kind.dtype)))
    return builder.gep(view.data, [offset]), shape[len(given) :]


@lower_builtin(operator.getitem, Borrowed, types.Integer)  # type: ignore[untyped-decorator]
@lower_builtin(operator.getitem, Borrowed, types.BaseTuple)  # type: ignore[untyped-decorator]
def _get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    address, extents = _locate(context, builder, sig.args[0], args[0], sig.args[1], args[1])
    if isinstance(sig.return_type, Borrowed):
        row = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        row.data = address
        row.shape = cgutils.pack_array(builder, extents)
        return row._getvalue()
    pointer = builder.bitcast(address, context.get_data_type(sig.return_type).as_pointer())
    return context.unpack_value(builder, sig.return_type, pointer)


@lower_builtin(operator.setitem, Borrowed, types.Integer, types.Any)  # type: ignore[untyped-decorator]
@lower_builtin(operator.setitem, Borrowed, types.BaseTuple, types.Any)  # type: ignore[untyped-decorator]
def _set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index_kind, _ = sig.args
    address, _ = _locate(context, builder, kind, args[0], index_kind, args[1])
    if isinstance(kind.dtype, types.Record):
        source = builder.bitcast(args[2], cgutils.voidptr_t)
        cgutils.raw_memcpy(builder, address, source, ir.Constant(ir.IntType(64), 1), _item_bytes(kind.dtype))
    else:
        pointer = builder.bitcast(address, context.get_data_type(kind.dtype).as_pointer())
        context.pack_value(builder, kind.dtype, args[2], pointer)
    return context.get_dummy_value()


# view.size, view.shape
@infer_getattr
class BorrowedAttributes(AttributeTemplate):  # type: ignore[misc]
    """`size` and `shape`, as arrays have them."""

    key = Borrowed

    def resolve_size(self, view: Any) -> Any:
        """Number of elements."""
        return types.intp

    def resolve_shape(self, view: Any) -> Any:
        """Extent of each dimension."""
        return types.UniTuple(types.intp, view.ndim)


@lower_getattr(Borrowed, "size")  # type: ignore[untyped-decorator]
def _size(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    view = cgutils.create_struct_proxy(kind)(context, builder, value=value)
    total = ir.Constant(context.get_value_type(types.intp), 1)
    for extent in cgutils.unpack_tuple(builder, view.shape, kind.ndim):
        total = builder.mul(total, extent)
    return total


@lower_getattr(Borrowed, "shape")  # type: ignore[untyped-decorator]
def _shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return cgutils.create_struct_proxy(kind)(context, builder, value=value).shape
