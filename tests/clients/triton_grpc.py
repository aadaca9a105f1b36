"""Tests with NVIDIA's gRPC client, unmodified, on the node at WEIR_URL.

The node has the models and functions that triton_http.py lists.
"""

import asyncio
import os
import queue
import unittest

import numpy as np
import tritonclient.grpc as sync
import tritonclient.grpc.aio as aio
from elements import CLASSES, ELEMENTS, values
from tritonclient.grpc import service_pb2, service_pb2_grpc
from google.protobuf import descriptor_pool, message_factory
from tritonclient.utils import InferenceServerException

import grpc

URL = os.environ["WEIR_URL"].removeprefix("http://")

# Fields for typed contents, by element type.
CONTENTS = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}


def tensor(name, datatype, array):
    given = sync.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def fields(message, number):
    """The values of a field with bytes in a message of protocol buffers that has only such fields."""
    values, at = [], 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        key, length = varint(), varint()
        if key == number << 3 | 2:
            values.append(message[at : at + length])
        at += length
    return values


class Sync(unittest.TestCase):
    def setUp(self):
        self.client = sync.InferenceServerClient(URL)

    def tearDown(self):
        self.client.close()

    def test_every_type_comes_back(self):
        for datatype, array in ELEMENTS.items():
            for shaped in [array, array.reshape(1, 3), array[:0]]:
                with self.subTest(datatype=datatype, shape=shaped.shape):
                    result = self.client.infer("echo", [tensor("x", datatype, shaped)])
                    self.assertEqual(values(result.as_numpy("x")), values(shaped))

    def test_elements_can_be_listed_one_by_one(self):
        with grpc.insecure_channel(URL) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for datatype, field in CONTENTS.items():
                request = service_pb2.ModelInferRequest(model_name="echo", id="7")
                given = request.inputs.add(name="x", datatype=datatype, shape=[3])
                elements = ELEMENTS[datatype].tolist()
                getattr(given.contents, field).extend(e.encode() if isinstance(e, str) else e for e in elements)
                response = stub.ModelInfer(request)
                self.assertEqual((response.id, response.outputs[0].datatype), ("7", datatype))
                result = sync.InferResult(response)
                self.assertEqual(values(result.as_numpy("x")), elements, datatype)

    def test_a_model_runs_on_every_type(self):
        inputs = [tensor(f"x_{n.lower()}", n, a) for n, a in ELEMENTS.items() if n != "BF16"]
        result = self.client.infer("identity", inputs)
        for name, array in ELEMENTS.items():
            if name != "BF16":
                self.assertEqual(values(result.as_numpy(f"y_{name.lower()}")), values(array), name)

    def test_outputs_versions_and_classes_are_chosen(self):
        x = np.array([[1, 0, 0, 0]], np.float32)
        wanted = [sync.InferRequestedOutput("y")]
        one = self.client.infer("matmul", [tensor("x", "FP32", x)], "1", outputs=wanted, request_id="r", priority=1)
        np.testing.assert_array_equal(one.as_numpy("y"), [[0, 1, 2]])
        self.assertEqual((one.get_response().model_version, one.get_response().id), ("1", "r"))
        classes = [sync.InferRequestedOutput("y", class_count=2)]
        result = self.client.infer("matmul", [tensor("x", "FP32", x)], "1", outputs=classes)
        self.assertEqual(values(result.as_numpy("y")), ["2.000000:2", "1.000000:1"])

    def test_classes_have_labels(self):
        x = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)
        classes = [sync.InferRequestedOutput("y", class_count=3)]
        result = self.client.infer("animals", [tensor("x", "FP32", x)], outputs=classes)
        self.assertEqual(result.as_numpy("y").shape, (2, 3))
        self.assertEqual(values(result.as_numpy("y")), CLASSES)
        config = self.client.get_model_config("animals").config
        self.assertEqual([output.label_filename for output in config.output], ["labels.y"])

    def test_reflection_describes_the_service(self):
        with grpc.insecure_channel(URL) as channel:
            for version in ["v1", "v1alpha"]:
                reflect = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
                symbol = b"inference.GRPCInferenceService"
                # ListServices, then FileContainingSymbol.
                listed, found = reflect(iter([b"\x3a\x00", bytes([0x22, len(symbol)]) + symbol]))
                self.assertIn(symbol, listed)
                [file] = fields(fields(found, 4)[0], 1)
                pool = descriptor_pool.DescriptorPool()
                pool.AddSerializedFile(file)
                method = pool.FindServiceByName(symbol.decode()).FindMethodByName("ModelReady")
                request = message_factory.GetMessageClass(method.input_type)(name="matmul")
                call = channel.unary_unary(
                    f"/{symbol.decode()}/{method.name}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
                )
                self.assertTrue(call(request).ready)

    def test_a_tensor_larger_than_the_usual_message(self):
        x = np.arange(4 * 500_000, dtype=np.float32).reshape(-1, 4)
        y = self.client.infer("matmul", [tensor("x", "FP32", x)], "1").as_numpy("y")
        self.assertEqual(y.shape, (500_000, 3))

    def test_streams_answer_in_order_and_go_on_after_an_error(self):
        answers = queue.Queue()
        self.client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for row in range(5):
            x = np.full((1, 4), row, np.float32)
            self.client.async_stream_infer("matmul", [tensor("x", "FP32", x)], model_version="1", request_id=str(row))
        self.client.async_stream_infer("nobody", [tensor("x", "FP32", x)])
        self.client.async_stream_infer("echo", [tensor("x", "FP32", x)])
        for row in range(5):
            result, error = answers.get(timeout=30)
            self.assertIsNone(error)
            self.assertEqual(result.get_response().id, str(row))
            self.assertTrue(result.get_response().parameters["triton_final_response"].bool_param)
            np.testing.assert_array_equal(result.as_numpy("y")[0], np.array([18, 22, 26]) * row)
        result, error = answers.get(timeout=30)
        self.assertIn("no model", str(error))
        result, error = answers.get(timeout=30)
        np.testing.assert_array_equal(result.as_numpy("x"), x)
        self.client.stop_stream()

    def test_the_server_and_its_models_describe_themselves(self):
        self.assertTrue(self.client.is_server_live() and self.client.is_server_ready())
        self.assertEqual(self.client.get_server_metadata().name, "weir")
        model = self.client.get_model_metadata("matmul")
        self.assertEqual((list(model.versions), model.platform), (["1", "2"], "onnxruntime_onnx"))
        self.assertEqual((model.inputs[0].name, list(model.inputs[0].shape)), ("x", [-1, 4]))
        config = self.client.get_model_config("matmul").config
        self.assertEqual((config.max_batch_size, config.output[0].data_type), (32, 11))
        self.assertEqual((list(config.output[0].dims), config.HasField("dynamic_batching")), ([3], True))
        for name, version, ready in [("matmul", "1", True), ("matmul", "9", False), ("echo", "", True), ("nobody", "", False)]:
            self.assertEqual(self.client.is_model_ready(name, version), ready, name)
        index = {(model.name, model.version): model.state for model in self.client.get_model_repository_index().models}
        self.assertEqual(index[("matmul", "2")], "READY")
        self.client.load_model("identity")
        self.client.unload_model("identity")
        self.client.infer("matmul", [tensor("x", "FP32", np.ones((2, 4), np.float32))])
        stats = self.client.get_inference_statistics("matmul").model_stats[0]
        self.assertGreaterEqual(stats.inference_count, 2)
        self.assertGreater(stats.inference_stats.success.ns, 0)

    def test_a_workflow_is_a_model(self):
        x = np.array([[0, 0, 0, 1]], np.float32)
        result = self.client.infer("mean", [tensor("x", "FP32", x)])
        self.assertEqual(values(result.as_numpy("y")), [14.0, 15.0, 16.0])
        self.assertTrue(self.client.is_model_ready("mean"))
        metadata = self.client.get_model_metadata("mean")
        self.assertEqual((metadata.platform, list(metadata.inputs[0].shape)), ("weir_workflow", [-1, 4]))
        self.assertEqual(list(self.client.get_model_config("mean").config.output[0].dims), [-1, 3])
        self.assertGreater(self.client.get_inference_statistics("mean").model_stats[0].inference_count, 0)

    def test_aliases_name_versions(self):
        x = np.array([[1, 0, 0, 0]], np.float32)
        for name, alias, inputs, version in [
            ("matmul", "old", [tensor("x", "FP32", x)], "1"),
            ("matmul", "stable", [tensor("x", "FP32", x)], "2"),
            ("mean", "live", [tensor("x", "FP32", x)], "1"),
            ("echo", "live", [tensor("x", "FP32", x)], "1"),
        ]:
            with self.subTest(name=name, alias=alias):
                response = self.client.infer(name, inputs, alias).get_response()
                self.assertEqual(response.model_version, version)
                self.assertTrue(self.client.is_model_ready(name, alias))
                self.assertEqual(list(self.client.get_model_metadata(name, alias).versions), [version])
                self.assertEqual(self.client.get_model_config(name, alias).config.name, name)
                stats = self.client.get_inference_statistics(name, alias).model_stats[0]
                self.assertEqual(stats.version, version)
        answers = queue.Queue()
        self.client.start_stream(callback=lambda result, error: answers.put((result, error)))
        self.client.async_stream_infer("matmul", [tensor("x", "FP32", x)], model_version="old")
        result, error = answers.get(timeout=30)
        self.assertIsNone(error)
        self.assertEqual(result.get_response().model_version, "1")
        self.client.stop_stream()

    def test_unknown_aliases_have_their_codes(self):
        x = tensor("x", "FP32", np.ones((1, 4), np.float32))
        self.assertFalse(self.client.is_model_ready("matmul", "none"))
        for alias, code, text in [
            ("none", "NOT_FOUND", "matmul has no alias none; it has old, stable"),
            ("Old", "INVALID_ARGUMENT", "is not a version"),
        ]:
            for call in [
                lambda: self.client.infer("matmul", [x], alias),
                lambda: self.client.get_model_metadata("matmul", alias),
            ]:
                with self.subTest(alias=alias), self.assertRaises(InferenceServerException) as refused:
                    call()
                self.assertEqual(refused.exception.status(), f"StatusCode.{code}")
                self.assertIn(text, refused.exception.message())

    def test_named_objects_are_regions_of_shared_memory(self):
        y = sync.InferRequestedOutput("x")
        y.set_shared_memory("grpc-kept", 8)
        given = self.client.infer("echo", [tensor("x", "FP32", np.float32([1.5, 2.5]))], outputs=[y])
        self.assertEqual(given.get_output("x").parameters["shared_memory_byte_size"].int64_param, 8)
        x = sync.InferInput("x", [1], "FP32")
        x.set_shared_memory("grpc-kept", 4, offset=4)
        self.assertEqual(self.client.infer("echo", [x]).as_numpy("x"), [2.5])
        missing = sync.InferInput("x", [2], "FP32")
        missing.set_shared_memory("nothing", 8)
        with self.assertRaisesRegex(InferenceServerException, "there is no object nothing"):
            self.client.infer("echo", [missing])

    def test_errors_have_their_codes(self):
        x = np.ones((1, 4), np.float32)
        for call, code in [
            (lambda: self.client.infer("nobody", [tensor("x", "FP32", x)]), "NOT_FOUND"),
            (lambda: self.client.infer("matmul", [tensor("z", "FP32", x)]), "INVALID_ARGUMENT"),
            (lambda: self.client.infer("matmul", [tensor("x", "FP32", x)], timeout=1), "DEADLINE_EXCEEDED"),
            (lambda: self.client.load_model("matmul", config="{}"), "UNIMPLEMENTED"),
            (lambda: self.client.get_log_settings(), "UNIMPLEMENTED"),
            (lambda: self.client.get_system_shared_memory_status(), "UNIMPLEMENTED"),
            (lambda: self.client.get_model_metadata("nobody"), "NOT_FOUND"),
            (lambda: self.client.infer("echo", [tensor("x", "FP32", x)], compression_algorithm="gzip"), "UNIMPLEMENTED"),
        ]:
            with self.subTest(code=code), self.assertRaises(InferenceServerException) as refused:
                call()
            self.assertEqual(refused.exception.status(), f"StatusCode.{code}")

    def test_bad_messages_are_refused(self):
        with grpc.insecure_channel(URL) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            def refused(code, **fields):
                request = service_pb2.ModelInferRequest(model_name="echo", **fields)
                with self.assertRaises(grpc.RpcError) as error:
                    stub.ModelInfer(request)
                self.assertEqual(error.exception.code(), code, error.exception.details())
            given = service_pb2.ModelInferRequest.InferInputTensor
            bad = grpc.StatusCode.INVALID_ARGUMENT
            refused(bad, inputs=[given(name="x", datatype="FP32", shape=[1])])
            refused(bad, inputs=[given(name="x", datatype="FP32", shape=[2])], raw_input_contents=[b"1234"])
            refused(bad, inputs=[given(name="x", datatype="FP32", shape=[-1])], raw_input_contents=[b"1234"])
            refused(bad, inputs=[given(name="x", datatype="FP31", shape=[1])], raw_input_contents=[b"1234"])
            refused(bad, inputs=[given(name="x", datatype="FP32", shape=[2**32 - 1] * 3)], raw_input_contents=[b""])
            refused(bad, raw_input_contents=[b"1234"])
            refused(bad, inputs=[given(name="x", datatype="FP32", shape=[0])] * 2, raw_input_contents=[b"", b""])
            refused(bad, inputs=[given(name=str(n)) for n in range(1025)])
            refused(grpc.StatusCode.RESOURCE_EXHAUSTED, id="x" * (5 << 20))
            narrow = service_pb2.InferTensorContents(uint_contents=[256])
            refused(bad, inputs=[given(name="x", datatype="UINT8", shape=[1], contents=narrow)])

    def test_health_protocol_and_shared_memory(self):
        with grpc.insecure_channel(URL) as channel:
            check, watch = (
                channel.unary_unary(f"/grpc.health.v1.Health/{method}", lambda raw: raw, lambda raw: raw)
                for method in ["Check", "Watch"]
            )
            self.assertEqual(check(b""), b"\x08\x01")
            self.assertEqual(check(b"\x0a\x1einference.GRPCInferenceService"), b"\x08\x01")
            for call, message, code in [
                (check, b"\x0a\x05other", grpc.StatusCode.NOT_FOUND),
                (watch, b"", grpc.StatusCode.UNIMPLEMENTED),
            ]:
                with self.assertRaises(grpc.RpcError) as error:
                    call(message)
                self.assertEqual(error.exception.code(), code)
        for ask in [self.client.get_cuda_shared_memory_status, self.client.get_system_shared_memory_status]:
            with self.assertRaisesRegex(InferenceServerException, "SharedMemoryStatus is not supported here"):
                ask()


class Aio(unittest.IsolatedAsyncioTestCase):
    async def test_calls_go_on_side_by_side(self):
        async with aio.InferenceServerClient(URL) as client:
            self.assertTrue(await client.is_server_ready())
            calls = [client.infer("echo", [tensor("x", datatype, array)]) for datatype, array in ELEMENTS.items()]
            for result, array in zip(await asyncio.gather(*calls), ELEMENTS.values()):
                self.assertEqual(values(result.as_numpy("x")), values(array))

            async def requests():
                for row in range(3):
                    yield {"model_name": "echo", "inputs": [tensor("x", "INT64", np.array([row]))]}

            seen = [result.as_numpy("x")[0] async for result, error in client.stream_infer(requests())]
            self.assertEqual(seen, [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
