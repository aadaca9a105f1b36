"""Tests of tensors of every type, and of rejected values."""

import asyncio
import contextlib
import io
import sys
import unittest
from array import array

from weir import Cancelled, ElementType, Error, InvalidArgument, InvalidRun, Model, NotFound, StatusError, Tensor, Tensors, testing
from weir import elements, gather, objects, tensor_function
from weir._wit import Err, tensors
from weir.coroutines import finish
from weir.errors import to_node

NUMBERS = [kind for kind in ElementType if kind not in (ElementType.BYTES, ElementType.BOOL)]


class TensorTests(unittest.TestCase):
    def test_numbers_of_every_type_round_trip(self):
        for kind in NUMBERS:
            tensor = Tensor([0, 1, 2, 100], (2, 2), kind)
            self.assertEqual(tensor.tolist(), [[0, 1], [2, 100]], kind)
            self.assertEqual(tensor.read(1, 3).tolist(), [1, 2])
            self.assertEqual((tensor.shape, tensor.element_type), ((2, 2), kind))

    def test_element_type_follows_from_values(self):
        for values, kind in [
            ([1, 2], ElementType.INT64),
            ([1, 2.5], ElementType.FP32),
            ([True, False], ElementType.BOOL),
            (["a", b"b"], ElementType.BYTES),
            (array("h", [1]), ElementType.INT16),
            (array("L", [1]), elements.of_buffer(memoryview(array("L", [1])))),
            (b"ab", ElementType.UINT8),
            (memoryview(b"abcd").cast("B", (2, 2)), ElementType.UINT8),
        ]:
            self.assertEqual(Tensor(values).element_type, kind, values)
        self.assertEqual(Tensor(memoryview(b"abcd").cast("B", (2, 2))).shape, (2, 2))
        self.assertEqual(Tensor(b"\x01\x02", element_type=ElementType.FP32).tolist(), [1.0, 2.0])

    def test_nested_lists_determine_the_shape(self):
        for values, shape in [
            ([[1.0, 2.0], [3.0, 4.0]], (2, 2)),
            ([[["a"], ["b"]]], (1, 2, 1)),
            ([(True, False)], (1, 2)),
            ([[], []], (2, 0)),
            (1.5, ()),
        ]:
            tensor = Tensor(values)
            self.assertEqual(tensor.shape, shape)
            self.assertEqual(Tensor(tensor.tolist()).tolist(), tensor.tolist())
        self.assertEqual(Tensor([[1, 2], [3, 4]], (4,)).tolist(), [1, 2, 3, 4])
        self.assertEqual(Tensor("a", ()).tolist(), "a")
        grid = memoryview(b"abcd").cast("B", (2, 2))
        self.assertEqual(Tensor(grid, element_type="fp32").shape, (2, 2))
        for ragged in [[[1], [1, 2]], [[1], 2], [[1, 2], [[1], [2]]]]:
            with self.assertRaisesRegex(InvalidArgument, "ragged"):
                Tensor(ragged)
        with self.assertRaisesRegex(InvalidArgument, "give a list"):
            Tensor("abc")

    def test_element_types_have_names(self):
        tensor = Tensor([1, 2], element_type="fp32")
        self.assertEqual((tensor.element_type, list(tensor.array("FP32"))), (ElementType.FP32, [1, 2]))
        self.assertEqual(Tensor.from_bytes("uint8", (1,), b"a").tolist(), [97])
        self.assertEqual(Tensor(b"ab", element_type="bytes").byte_strings(), [b"ab"])
        for wrong in ["float", 3]:
            with self.assertRaisesRegex(InvalidArgument, "is no element type; there are: bool, uint8"):
                tensor.array(wrong)

    def test_tensor_supports_the_buffer_protocol(self):
        tensor = Tensor([[1.0, 2.0]])
        if sys.version_info < (3, 12):
            with self.assertRaises(TypeError):
                memoryview(tensor)
        for tensor, shape in [(tensor, (1, 2)), (Tensor([], (0,)), (0,)), (Tensor(2.0, ()), (1,))]:
            view = memoryview(tensor) if sys.version_info >= (3, 12) else tensor.__buffer__(0)
            self.assertEqual((view.shape, view.format), (shape, "f"))

    def test_closed_handles_are_reported(self):
        with testing.model("same", lambda inputs: dict(inputs)):
            with Tensor([1]) as tensor, Model.open("same") as model:
                pending = model.submit({"x": tensor})
            for use in [tensor.tolist, lambda: tensor.shape, lambda: model.infer({}), model.describe]:
                with self.assertRaisesRegex(ValueError, "the (tensor|model) was closed"):
                    use()
            with Model.open("same") as model, self.assertRaisesRegex(ValueError, "the tensor was closed"):
                model.infer({"x": tensor})
            self.assertEqual(repr(tensor), "<Tensor closed>")
            with pending:
                pass
            with self.assertRaisesRegex(ValueError, "the pending was closed"):
                pending.result()

    def test_booleans_and_strings_round_trip(self):
        self.assertEqual(Tensor([True, False]).tolist(), [True, False])
        self.assertEqual(Tensor(["grüezi", ""]).strings(), ["grüezi", ""])
        self.assertEqual(Tensor([b"\xff"]).byte_strings(), [b"\xff"])
        with self.assertRaises(InvalidArgument):
            Tensor([b"\xff"]).strings()
        with self.assertRaises(InvalidArgument):
            Tensor([1.0]).strings()

    def test_half_floats_round_like_hardware(self):
        values = [1.0, -2.5, 3.140625, float("inf"), 1e-3]
        wide = Tensor(values, element_type=ElementType.BF16).array()
        for value, found in zip(values, wide):
            self.assertTrue(found == value or abs(found - value) <= abs(value) / 256)
        self.assertNotEqual(*[Tensor([float("nan")], element_type=ElementType.BF16).array()[0]] * 2)

    def test_mismatched_values_are_rejected(self):
        for make in [
            lambda: Tensor([1, 2, 3], (2, 2)),
            lambda: Tensor([1, 2, 3], (-1, 2)),
            lambda: Tensor([256], element_type=ElementType.UINT8),
            lambda: Tensor([-1], element_type=ElementType.UINT64),
            lambda: Tensor([1e6], element_type=ElementType.FP16),
            lambda: Tensor([object()]),
            lambda: Tensor([1, "a"]),
            lambda: Tensor.from_bytes(ElementType.FP32, (1,), b"abc"),
            lambda: elements.split(b"\x05\0\0\0abc"),
            lambda: elements.split(b"\x05\0"),
            lambda: Tensor([1.0]).array(ElementType.INT32),
            lambda: Tensors(a=Tensor([1])).only() and Tensors()["x"],
        ]:
            with self.assertRaises(InvalidArgument):
                make()
        self.assertEqual(Tensor([1, 2, 3, 4], (-1, 2)).shape, (2, 2))
        self.assertEqual(Tensor([7], ()).tolist(), 7)

    def test_errors_subclass_built_in_exceptions(self):
        self.assertTrue(issubclass(InvalidArgument, ValueError) and issubclass(NotFound, LookupError))
        self.assertEqual(str(Cancelled()), "The run was cancelled, by the function or because the client went away")


class ModelTests(unittest.TestCase):
    def test_provided_model_runs_and_is_awaited(self):
        def swap(inputs):
            return {"b": inputs["a"], "a": inputs["b"]}

        with testing.model("swap", swap):
            model = Model.open("swap:1")
            inputs = {"a": Tensor([1]), "b": Tensor([2])}
            self.assertEqual(model.infer(inputs, outputs=["a"]).only().tolist(), [2])
            self.assertEqual(list(model.submit(inputs, timeout=1).result()), ["b", "a"])

            async def both():
                first, second = model.submit(inputs), model.submit(inputs)
                return (await first)["a"].tolist() + (await second)["b"].tolist()

            self.assertEqual(asyncio.run(both()), [2, 1])
            pending = model.submit(inputs)
            pending.cancel()
            with self.assertRaises(Cancelled):
                pending.result()
            with self.assertRaises(InvalidArgument) as wrong:
                model.infer({"a": Tensor([1])})
            self.assertIsInstance(wrong.exception, InvalidRun)
            self.assertEqual(wrong.exception.status, 500)
            self.assertIsInstance(to_node(wrong.exception).value, tensors.Error_Internal)
            with self.assertRaises(TypeError):
                model.infer({"a": [1]})
        with self.assertRaises(NotFound):
            Model.open("swap")

    def test_gather_submits_all_runs_before_waiting(self):
        order = []

        async def one(model, value):
            order.append(f"begin {value}")
            first = (await model.submit({"x": Tensor([value])}))["x"]
            order.append(f"go on {value}")
            return (await model.submit({"x": first})).only().tolist()

        async def both():
            model = Model.open("same")
            return await gather(one(model, 1), gather(one(model, 2)), model.submit({"x": Tensor([3])}))

        for run in [finish, asyncio.run]:
            order.clear()
            with testing.model("same", lambda inputs: dict(inputs)):
                first, second, third = run(both())
            self.assertEqual((first, second, third.only().tolist()), ([1], [[2]], [3]))
            self.assertEqual(order, ["begin 1", "begin 2", "go on 1", "go on 2"])

    def test_gather_cancels_the_others_on_failure(self):
        ended = []

        async def waits():
            try:
                await gather(Model.open("same").submit({}))
            finally:
                ended.append(True)

        async def fails():
            raise KeyError("a mistake")

        with testing.model("same", lambda inputs: dict(inputs)), self.assertRaises(KeyError):
            finish(gather(waits(), fails()))
        self.assertEqual(ended, [True])

    def test_awaiting_an_event_loop_raises(self):
        class Future:
            def __await__(self):
                yield self

        async def run(times):
            for _ in range(times):
                try:
                    await Future()
                except RuntimeError as error:
                    self.assertIn("Future was awaited, and a component has no event loop", str(error))

        self.assertIsNone(finish(run(1)))
        with self.assertRaisesRegex(RuntimeError, "went on to await"):
            finish(run(2))

    def test_outputs_are_distinct_named_tensors(self):
        tensor = Tensor([1])
        for outputs, words in [
            ([tensor], "the outputs are of list"),
            (None, "the outputs are of NoneType"),
            ({"y": [1]}, "y is of list and not a Tensor"),
            ({1: tensor}, "the outputs have the name 1"),
            ({"y": tensor, "z": tensor}, "y and z are the same tensor"),
        ]:
            tensor_function(lambda inputs: outputs)
            with self.assertRaises(Err) as raised, contextlib.redirect_stderr(io.StringIO()) as log:
                Stage().run([])  # noqa: F821
            self.assertIsInstance(raised.exception.value, tensors.Error_Internal)
            self.assertIn(words, raised.exception.value.value)
            self.assertIn(words, log.getvalue())

    def test_object_exists_until_deleted(self):
        objects.put("kept", Tensor([1.5, 2.5]), ttl=60)
        self.assertEqual(objects.get("kept").tolist(), [1.5, 2.5])
        objects.delete("kept")
        for gone in (objects.get, objects.delete):
            with self.assertRaisesRegex(NotFound, "no object kept"):
                gone("kept")
        with self.assertRaises(InvalidArgument):
            objects.put("kept", Tensor([1]), ttl=0)

    def test_tensor_function_may_be_a_coroutine(self):
        @tensor_function
        async def run(inputs):
            return {"y": inputs["x"]}

        raw = Tensor([1])._raw
        self.assertEqual(run.__globals__["Stage"]().run([("x", raw)]), [("y", raw)])

    def test_tensor_function_returns_tensors_or_wit_error(self):
        @tensor_function
        def run(inputs):
            if "x" not in inputs:
                raise StatusError(404, "no x")
            return {"y": inputs["x"]}

        stage = run.__globals__["Stage"]()
        raw = Tensor([1])._raw
        self.assertEqual(stage.run([("x", raw)]), [("y", raw)])
        with self.assertRaises(Exception) as refusal:
            stage.run([])
        self.assertNotIsInstance(refusal.exception, Error)
        self.assertEqual(refusal.exception.value.value, "no x")


if __name__ == "__main__":
    unittest.main()
