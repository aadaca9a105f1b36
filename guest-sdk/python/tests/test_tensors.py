"""Tensors hold what they are given, of every type, and refuse what does not fit."""

import asyncio
import unittest
from array import array

from weir import Cancelled, ElementType, Error, InvalidArgument, Model, NotFound, StatusError, Tensor, Tensors, testing
from weir import elements, tensor_function

NUMBERS = [kind for kind in ElementType if kind not in (ElementType.BYTES, ElementType.BOOL)]


class TensorTests(unittest.TestCase):
    def test_numbers_of_every_type_survive(self):
        for kind in NUMBERS:
            tensor = Tensor([0, 1, 2, 100], (2, 2), kind)
            self.assertEqual(tensor.tolist(), [[0, 1], [2, 100]], kind)
            self.assertEqual(tensor.read(1, 3).tolist(), [1, 2])
            self.assertEqual((tensor.shape, tensor.element_type), ((2, 2), kind))

    def test_the_type_follows_from_the_values(self):
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

    def test_truths_and_strings_come_back_as_such(self):
        self.assertEqual(Tensor([True, False]).tolist(), [True, False])
        self.assertEqual(Tensor(["grüezi", ""]).strings(), ["grüezi", ""])
        self.assertEqual(Tensor([b"\xff"]).byte_strings(), [b"\xff"])
        with self.assertRaises(InvalidArgument):
            Tensor([b"\xff"]).strings()
        with self.assertRaises(InvalidArgument):
            Tensor([1.0]).strings()

    def test_half_floats_are_rounded_as_the_machine_does(self):
        values = [1.0, -2.5, 3.140625, float("inf"), 1e-3]
        wide = Tensor(values, element_type=ElementType.BF16).array()
        for value, found in zip(values, wide):
            self.assertTrue(found == value or abs(found - value) <= abs(value) / 256)
        self.assertNotEqual(*[Tensor([float("nan")], element_type=ElementType.BF16).array()[0]] * 2)

    def test_what_does_not_fit_is_refused(self):
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

    def test_errors_are_also_of_the_built_in_kinds(self):
        self.assertTrue(issubclass(InvalidArgument, ValueError) and issubclass(NotFound, LookupError))
        self.assertEqual(str(Cancelled()), "The run was cancelled, by the function or because the client went away")


class ModelTests(unittest.TestCase):
    def test_a_model_of_the_test_is_run_and_awaited(self):
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
            with self.assertRaises(InvalidArgument):
                model.infer({"a": Tensor([1])})
            with self.assertRaises(TypeError):
                model.infer({"a": [1]})
        with self.assertRaises(NotFound):
            Model.open("swap")

    def test_a_tensor_function_gives_tensors_or_the_contracts_error(self):
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
