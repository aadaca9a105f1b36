"""Tests with NVIDIA's HTTP client, unmodified, on the node at WEIR_URL.

The node has the tensor function `echo`, the models `identity`, `identity_bf16` and `matmul`
(versions 1 and 2) of tests/fixtures/models, the workflow `mean` of both versions of `matmul`, and the
model `animals`, which is version 1 of `matmul` with the labels "cat", "" and "long: dog".
"""

import asyncio
import os
import unittest

import numpy as np
import tritonclient.http as sync
import tritonclient.http.aio as aio
from elements import CLASSES, ELEMENTS, values
from tritonclient.utils import InferenceServerException

URL = os.environ["WEIR_URL"].removeprefix("http://")

# Element types without a JSON form.
BINARY_ONLY = {"FP16", "BF16"}


def tensor(name, datatype, array, binary=True):
    given = sync.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


class Sync(unittest.TestCase):
    def setUp(self):
        self.client = sync.InferenceServerClient(URL)

    def tearDown(self):
        self.client.close()

    def echo(self, inputs, **options):
        return self.client.infer("echo", inputs, **options)

    def test_every_type_comes_back_in_every_form(self):
        for datatype, array in ELEMENTS.items():
            for shaped in [array, array.reshape(1, 3), array[:0]]:
                for into in [True] if datatype in BINARY_ONLY else [True, False]:
                    for out in [True] if datatype in BINARY_ONLY else [True, False]:
                        with self.subTest(datatype=datatype, shape=shaped.shape, into=into, out=out):
                            wanted = [sync.InferRequestedOutput("x", binary_data=out)]
                            result = self.echo([tensor("x", datatype, shaped, into)], outputs=wanted)
                            self.assertEqual(values(result.as_numpy("x")), values(shaped))
                            self.assertEqual(result.get_output("x")["shape"], list(shaped.shape))
                            self.assertEqual(result.get_output("x")["datatype"], datatype)

    def test_all_types_in_one_request_without_a_word_about_outputs(self):
        result = self.echo([tensor(name, name, array) for name, array in ELEMENTS.items()])
        for name, array in ELEMENTS.items():
            self.assertEqual(values(result.as_numpy(name)), values(array), name)

    def test_json_and_binary_mix(self):
        inputs = [tensor("a", "FP32", ELEMENTS["FP32"], False), tensor("b", "INT64", ELEMENTS["INT64"], True)]
        wanted = [sync.InferRequestedOutput("b", binary_data=False), sync.InferRequestedOutput("a", binary_data=True)]
        result = self.echo(inputs, outputs=wanted)
        self.assertEqual([output["name"] for output in result.get_response()["outputs"]], ["b", "a"])
        np.testing.assert_array_equal(result.as_numpy("a"), ELEMENTS["FP32"])
        np.testing.assert_array_equal(result.as_numpy("b"), ELEMENTS["INT64"])

    def test_a_model_runs_on_every_type(self):
        inputs = [tensor(f"x_{n.lower()}", n, a) for n, a in ELEMENTS.items() if n != "BF16"]
        result = self.client.infer("identity", inputs)
        for name, array in ELEMENTS.items():
            if name != "BF16":
                self.assertEqual(values(result.as_numpy(f"y_{name.lower()}")), values(array), name)
        halves = self.client.infer("identity_bf16", [tensor("x_bf16", "BF16", ELEMENTS["BF16"])])
        np.testing.assert_array_equal(halves.as_numpy("y_bf16"), ELEMENTS["BF16"])

    def test_versions_answer_for_themselves(self):
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        weights = np.arange(12, dtype=np.float32).reshape(4, 3)
        for version, more in [("1", 0), ("2", 10), ("", 10)]:
            result = self.client.infer("matmul", [tensor("x", "FP32", x)], model_version=version, request_id="r-7")
            np.testing.assert_allclose(result.as_numpy("y"), x @ (weights + more))
            response = result.get_response()
            self.assertEqual(response["model_version"], version or "2")
            self.assertEqual((response["model_name"], response["id"]), ("matmul", "r-7"))

    def test_bodies_are_compressed_as_asked(self):
        x = np.zeros((1000, 4), np.float32)
        for algorithm in ["gzip", "deflate"]:
            result = self.client.infer(
                "matmul", [tensor("x", "FP32", x)],
                request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
            )
            self.assertEqual(result.as_numpy("y").shape, (1000, 3))

    def test_classes_are_value_and_index(self):
        x = np.array([[1, 0, 0, 0]], np.float32)
        wanted = [sync.InferRequestedOutput("y", class_count=2)]
        result = self.client.infer("matmul", [tensor("x", "FP32", x)], model_version="1", outputs=wanted)
        self.assertEqual(values(result.as_numpy("y")), ["2.000000:2", "1.000000:1"])

    def test_classes_have_labels(self):
        x = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)
        for binary in [True, False]:
            wanted = [sync.InferRequestedOutput("y", binary_data=binary, class_count=3)]
            result = self.client.infer("animals", [tensor("x", "FP32", x)], outputs=wanted)
            self.assertEqual(result.as_numpy("y").shape, (2, 3))
            self.assertEqual(values(result.as_numpy("y")), CLASSES)
        [output] = self.client.get_model_config("animals")["output"]
        self.assertEqual(output["label_filename"], "labels.y")

    def test_requests_can_be_made_and_read_apart(self):
        x = np.ones((1, 4), np.float32)
        body, json_size = sync.InferenceServerClient.generate_request_body([tensor("x", "FP32", x)])
        self.assertIsNotNone(json_size)
        many = [self.client.async_infer("matmul", [tensor("x", "FP32", x)]) for _ in range(4)]
        for one in many:
            self.assertEqual(one.get_result().as_numpy("y").shape, (1, 3))

    def test_priority_timeout_and_sequences_are_taken(self):
        x = np.ones((1, 4), np.float32)
        result = self.client.infer(
            "matmul", [tensor("x", "FP32", x)], priority=1, timeout=30_000_000,
            sequence_id=5, sequence_start=True, sequence_end=True, parameters={"mine": "passed over"},
        )
        self.assertEqual(result.as_numpy("y").shape, (1, 3))
        with self.assertRaises(InferenceServerException) as refused:
            self.client.infer("matmul", [tensor("x", "FP32", x)], timeout=1)
        self.assertEqual(refused.exception.status(), "504")

    def test_the_server_and_its_models_describe_themselves(self):
        self.assertTrue(self.client.is_server_live() and self.client.is_server_ready())
        server = self.client.get_server_metadata()
        self.assertEqual(server["name"], "weir")
        self.assertIn("binary_tensor_data", server["extensions"])
        model = self.client.get_model_metadata("matmul")
        self.assertEqual(model["versions"], ["1", "2"])
        self.assertEqual(model["platform"], "onnxruntime_onnx")
        self.assertEqual(model["inputs"], [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}])
        self.assertEqual(self.client.get_model_metadata("matmul", "1")["versions"], ["1"])
        config = self.client.get_model_config("matmul")
        self.assertEqual(config["max_batch_size"], 32)
        x = {"name": "x", "data_type": "TYPE_FP32", "dims": [4], "format": "FORMAT_NONE"}
        defaults = {"is_shape_tensor": False, "allow_ragged_batch": False, "optional": False}
        self.assertEqual(config["input"], [x | defaults])
        y = {"name": "y", "data_type": "TYPE_FP32", "dims": [3], "is_shape_tensor": False}
        self.assertEqual(config["output"], [y])
        self.assertEqual(config["dynamic_batching"], {"preferred_batch_size": [], "max_queue_delay_microseconds": 0})
        self.assertEqual(self.client.get_model_metadata("echo")["platform"], "weir_function")
        for name, version, ready in [("matmul", "1", True), ("matmul", "9", False), ("echo", "", True), ("nobody", "", False)]:
            self.assertEqual(self.client.is_model_ready(name, version), ready, name)

    def test_models_are_listed_loaded_and_unloaded(self):
        index = {(model["name"], model["version"]): model["state"] for model in self.client.get_model_repository_index()}
        self.assertEqual(index[("matmul", "2")], "READY")
        self.assertEqual(index[("echo", "1")], "READY")
        self.client.load_model("identity_bf16")
        self.client.unload_model("identity_bf16")
        self.client.load_model("echo")
        self.assertTrue(self.client.is_model_ready("identity_bf16"))
        with self.assertRaisesRegex(InferenceServerException, "PUT /v1/models"):
            self.client.load_model("matmul", config="{}")
        with self.assertRaisesRegex(InferenceServerException, "no model"):
            self.client.load_model("nobody")

    def test_a_workflow_is_a_model(self):
        x = np.array([[0, 0, 0, 1]], np.float32)
        result = self.client.infer("mean", [tensor("x", "FP32", x)])
        self.assertEqual(values(result.as_numpy("y")), [14.0, 15.0, 16.0])
        self.assertTrue(self.client.is_model_ready("mean"))
        metadata = self.client.get_model_metadata("mean")
        self.assertEqual((metadata["platform"], metadata["inputs"][0]["shape"]), ("weir_workflow", [-1, 4]))
        self.assertEqual(self.client.get_model_config("mean")["output"][0]["dims"], [-1, 3])
        self.assertGreater(self.client.get_inference_statistics("mean")["model_stats"][0]["inference_count"], 0)
        with self.assertRaisesRegex(InferenceServerException, "no input"):
            self.client.infer("mean", [tensor("z", "FP32", x)])

    def test_statistics_count(self):
        x = np.ones((3, 4), np.float32)
        before = self.client.get_inference_statistics("matmul", "1")["model_stats"][0]
        self.client.infer("matmul", [tensor("x", "FP32", x)], model_version="1")
        after = self.client.get_inference_statistics("matmul", "1")["model_stats"][0]
        self.assertGreaterEqual(after["inference_count"], before["inference_count"] + 3)
        success = after["inference_stats"]["success"]
        self.assertGreater(success["count"], before["inference_stats"]["success"]["count"])
        self.assertGreater(success["ns"], after["inference_stats"]["compute_infer"]["ns"])
        names = [model["name"] for model in self.client.get_inference_statistics()["model_stats"]]
        self.assertEqual(sorted(names), names)
        self.assertIn("echo", names)

    def test_errors_say_what_is_wrong(self):
        x = np.ones((1, 4), np.float32)
        for name, inputs, status, text in [
            ("nobody", [tensor("x", "FP32", x)], "404", "no model"),
            ("matmul", [tensor("z", "FP32", x)], "400", "no input"),
            ("matmul", [tensor("x", "FP64", x.astype(np.float64))], "400", "given as FP64"),
            ("matmul", [tensor("x", "FP32", x[:, :3])], "400", "given in shape"),
            ("matmul", [], "400", "missing"),
        ]:
            with self.subTest(name=name, text=text), self.assertRaisesRegex(InferenceServerException, text) as refused:
                self.client.infer(name, inputs)
            self.assertEqual(refused.exception.status(), status)
        with self.assertRaisesRegex(InferenceServerException, "as binary"):
            half = tensor("x", "FP16", ELEMENTS["FP16"])
            self.echo([half], outputs=[sync.InferRequestedOutput("x", binary_data=False)])
        with self.assertRaisesRegex(InferenceServerException, "no output"):
            self.echo([tensor("x", "FP32", x)], outputs=[sync.InferRequestedOutput("y")])

    def test_what_is_not_there_says_so(self):
        for call in [
            self.client.get_log_settings,
            self.client.get_trace_settings,
            self.client.get_system_shared_memory_status,
            self.client.get_cuda_shared_memory_status,
            lambda: self.client.get_trace_settings("matmul"),
            lambda: self.client.register_system_shared_memory("r", "/r", 8),
        ]:
            with self.assertRaisesRegex(InferenceServerException, "not supported") as refused:
                call()
            self.assertEqual(refused.exception.status(), "501")

    def test_named_objects_are_regions_of_shared_memory(self):
        y = sync.InferRequestedOutput("x")
        y.set_shared_memory("http-kept", 8)
        given = self.echo([tensor("x", "FP32", np.float32([1.5, 2.5]))], outputs=[y])
        self.assertEqual(given.get_output("x")["parameters"], {"shared_memory_region": "http-kept", "shared_memory_byte_size": 8})
        x = sync.InferInput("x", [1], "FP32")
        x.set_shared_memory("http-kept", 4, offset=4)
        self.assertEqual(self.echo([x]).as_numpy("x"), [2.5])
        missing = sync.InferInput("x", [2], "FP32")
        missing.set_shared_memory("nothing", 8)
        with self.assertRaisesRegex(InferenceServerException, 'input "x": there is no object nothing'):
            self.echo([missing])


class Aio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = aio.InferenceServerClient(URL)

    async def asyncTearDown(self):
        await self.client.close()

    async def test_every_type_comes_back(self):
        calls = []
        for datatype, array in ELEMENTS.items():
            for binary in [True] if datatype in BINARY_ONLY else [True, False]:
                wanted = [aio.InferRequestedOutput("x", binary_data=binary)]
                calls.append((array, self.client.infer("echo", [tensor("x", datatype, array, binary)], outputs=wanted)))
        for (array, _), result in zip(calls, await asyncio.gather(*(call for _, call in calls))):
            self.assertEqual(values(result.as_numpy("x")), values(array))

    async def test_a_model_answers_the_default_call(self):
        x = np.ones((300, 4), np.float32)
        result = await self.client.infer("matmul", [tensor("x", "FP32", x)], model_version="1")
        np.testing.assert_allclose(result.as_numpy("y")[0], [18, 22, 26])
        for algorithm in ["gzip", "deflate"]:
            result = await self.client.infer(
                "matmul", [tensor("x", "FP32", x)],
                request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
            )
            self.assertEqual(result.as_numpy("y").shape, (300, 3))

    async def test_everything_else_answers(self):
        self.assertTrue(await self.client.is_server_live() and await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready("matmul"))
        self.assertEqual((await self.client.get_server_metadata())["name"], "weir")
        self.assertEqual((await self.client.get_model_metadata("matmul"))["name"], "matmul")
        self.assertEqual((await self.client.get_model_config("matmul"))["name"], "matmul")
        self.assertTrue(await self.client.get_model_repository_index())
        self.assertTrue((await self.client.get_inference_statistics())["model_stats"])
        await self.client.load_model("matmul")
        await self.client.unload_model("matmul")
        with self.assertRaisesRegex(InferenceServerException, "no model"):
            await self.client.infer("nobody", [tensor("x", "FP32", np.ones(1, np.float32))])


if __name__ == "__main__":
    unittest.main()
