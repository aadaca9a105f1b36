"""Tests of arithmetic on tensors."""

import math
import unittest

from weir import ElementType, InvalidArgument, Tensor


def listed(tensor):
    return tensor.element_type.name, tensor.shape, tensor.tolist()


class ArithmeticTests(unittest.TestCase):
    def test_numbers_are_combined_with_every_element(self):
        floats = Tensor([[1.0, 2.0], [4.0, -8.0]])
        for result, expected in [
            (floats + 1, [[2, 3], [5, -7]]),
            (1 + floats, [[2, 3], [5, -7]]),
            (floats - 1.5, [[-0.5, 0.5], [2.5, -9.5]]),
            (1 - floats, [[0, -1], [-3, 9]]),
            (floats * 0.5, [[0.5, 1], [2, -4]]),
            (floats / 2, [[0.5, 1], [2, -4]]),
            (8 / floats, [[8, 4], [2, -1]]),
            (-floats, [[-1, -2], [-4, 8]]),
        ]:
            self.assertEqual(listed(result), ("FP32", (2, 2), expected))

    def test_tensors_of_one_shape_are_combined_element_by_element(self):
        a, b = Tensor([1.0, 2.0]), Tensor([4.0, 8.0])
        self.assertEqual([(a + b).tolist(), (a - b).tolist(), (a * b).tolist(), (a / b).tolist()], [[5, 10], [-3, -6], [4, 16], [0.25, 0.25]])
        self.assertEqual((Tensor(3.0, ()) * Tensor(2.0, ())).tolist(), 6)
        self.assertEqual((Tensor([], (0, 3)) + 1).shape, (0, 3))

    def test_result_keeps_the_type_unless_it_has_fractions(self):
        for kind in ["uint8", "int8", "uint16", "int32", "int64", "uint64"]:
            tensor = Tensor([4, 8], element_type=kind)
            self.assertEqual(listed(tensor * 2 - tensor), (kind.upper(), (2,), [4, 8]))
            self.assertEqual(listed(tensor / 8), ("FP32", (2,), [0.5, 1]))
            self.assertEqual(listed(tensor + 0.5), ("FP32", (2,), [4.5, 8.5]))
        for kind in ["fp16", "bf16", "fp64"]:
            self.assertEqual(listed(Tensor([4, 8], element_type=kind) / 2 + 1), (kind.upper(), (2,), [3, 5]))

    def test_division_by_zero_follows_ieee(self):
        result = (Tensor([1.0, -1.0, 0.0]) / 0).tolist()
        self.assertEqual(result[:2], [math.inf, -math.inf])
        self.assertTrue(math.isnan(result[2]))
        self.assertEqual((Tensor([1.0]) / Tensor([-0.0])).tolist(), [-math.inf])

    def test_operands_that_do_not_fit_are_refused(self):
        a = Tensor([1.0, 2.0])
        for compute, message in [
            (lambda: a + Tensor([1.0]), r"the shapes \(2,\) and \(1,\) differ"),
            (lambda: a + Tensor([1, 2]), "hold fp32 and int64"),
            (lambda: Tensor([True]) + 1, "holds bool and not numbers"),
            (lambda: Tensor(["a"]) * 2, "holds bytes and not numbers"),
            (lambda: Tensor([200], element_type="uint8") + 100, "do not fit uint8"),
        ]:
            self.assertRaisesRegex(InvalidArgument, message, compute)
        for other in ["1", [1, 2], None]:
            self.assertRaises(TypeError, lambda other=other: a + other)

    def test_reshape_copies_into_another_shape(self):
        tensor = Tensor(range(6), (2, 3), "int32")
        self.assertEqual(listed(tensor.reshape(3, 2)), ("INT32", (3, 2), [[0, 1], [2, 3], [4, 5]]))
        self.assertEqual(tensor.reshape((1, -1)).shape, (1, 6))
        self.assertEqual(tensor.reshape(-1).shape, (6,))
        self.assertEqual(Tensor(["a", "b"]).reshape(2, 1).tolist(), [["a"], ["b"]])
        self.assertRaisesRegex(InvalidArgument, "6 elements do not fill", tensor.reshape, 4, 2)

    def test_argmax_is_the_first_largest(self):
        tensor = Tensor([[1.0, 9.0, 2.0], [9.0, 0.0, 3.0]])
        self.assertEqual(tensor.argmax(), 1)
        self.assertEqual(listed(tensor.argmax(1)), ("INT64", (2,), [1, 0]))
        self.assertEqual(tensor.argmax(axis=-1).tolist(), [1, 0])
        self.assertEqual(tensor.argmax(axis=0).tolist(), [1, 0, 1])
        self.assertEqual(Tensor([5, 7, 7], element_type="int8").argmax(), 1)
        self.assertEqual(Tensor([math.inf, -math.inf]).argmax(), 0)
        self.assertEqual(Tensor([1.0, math.nan, 3.0]).argmax(), 1)
        self.assertRaisesRegex(InvalidArgument, "empty", Tensor([]).argmax)
        self.assertRaisesRegex(InvalidArgument, "no axis 2", tensor.argmax, 2)

    def test_softmax_gives_probabilities_along_an_axis(self):
        rows = Tensor([[0.0, math.log(3)], [1000.0, 1000.0]])
        self.assertEqual([[round(value, 5) for value in row] for row in rows.softmax().tolist()], [[0.25, 0.75], [0.5, 0.5]])
        columns = Tensor([0.0, 5.0, math.log(3), 5.0], (2, 2)).softmax(axis=0)
        self.assertEqual([[round(value, 5) for value in row] for row in columns.tolist()], [[0.25, 0.5], [0.75, 0.5]])
        self.assertEqual(Tensor([1, 1]).softmax().element_type, ElementType.FP32)
        self.assertEqual(Tensor([1.0], element_type="fp64").softmax().element_type, ElementType.FP64)
        self.assertEqual(Tensor([], (0,)).softmax().tolist(), [])

    def test_topk_is_ordered(self):
        scores = Tensor([0.25, 0.5, 0.125, 0.5])
        self.assertEqual(scores.topk(3), [(1, 0.5), (3, 0.5), (0, 0.25)])
        self.assertEqual(scores.reshape(1, 4).topk(1), [[(1, 0.5)]])
        self.assertEqual(scores.reshape(2, 1, 2).topk(1), [[[(1, 0.5)]], [[(1, 0.5)]]])
        self.assertEqual(len(scores.topk(9)), 4)
        self.assertEqual(Tensor([]).topk(1), [])
        self.assertRaises(InvalidArgument, Tensor(1.0, ()).topk, 1)
        self.assertRaises(InvalidArgument, scores.topk, -1)
        found = [index for index, _ in Tensor([0.1, math.nan, 0.3, 0.9, math.nan, 0.2]).topk(3)]
        self.assertEqual((sorted(found[:2]), found[2]), ([1, 4], 3))

    def test_floats_overflow_to_infinity(self):
        for kind in ["fp16", "bf16", "fp32"]:
            tensor = Tensor([60000.0, -60000.0], element_type=kind)
            self.assertEqual((tensor * 1e38).tolist(), [math.inf, -math.inf])
        self.assertEqual(math.copysign(1, (-Tensor([0.0])).tolist()[0]), -1)
        self.assertRaises(InvalidArgument, lambda: Tensor([1.0]) * 10**400)


if __name__ == "__main__":
    unittest.main()
