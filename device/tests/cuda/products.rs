//! Matrix products with cuBLASLt.

use crate::support::{SEEDS, TestDevice, bytes_of, devices, floats_of, launch_fill};
use std::sync::Arc;
use weir_device::cuda::{
    Allocation, CublasLt, CudaError, Gemm, ProductBuffers, ProductMatrix, ProductShape, Products, Span,
    Unavailable,
};
use weir_fake_cuda::Fake;
use weir_types::ElementType;

const WORKSPACE_BYTES: u64 = 64 << 10;
/// Exact alignment of the addresses.
const ALIGNMENT_BYTES: u64 = 16;

/// 2 x 3 times 3 x 2 with all options, on a device that has the operands.
struct Setup {
    buffers: ProductBuffers<u64>,
    shape: ProductShape,
    memory: [Allocation; 6],
    products: Arc<Products>,
    machine: TestDevice,
}

/// A span with the minimum alignment.
fn behind(memory: &Allocation) -> Span {
    memory.span().slice(ALIGNMENT_BYTES, memory.span().bytes() - ALIGNMENT_BYTES).unwrap()
}

impl Setup {
    fn new(seed: u64) -> Self {
        Self::from_machine(TestDevice::new(seed))
    }

    fn from_machine(machine: TestDevice) -> Self {
        let library = CublasLt::open(&machine.fake.cublas_lt(12)).unwrap();
        let products = Arc::new(Products::new(library, &machine.context).unwrap());
        let contents: [&[f32]; 4] = [
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            // The columns of b, one after another.
            &[1.0, 0.0, 1.0, -2.0, -1.0, 0.0],
            &[10.0, 1.0],
            &[0.5, 0.25, 0.0, 20.0],
        ];
        let [a, b, bias, residual] = contents.map(|values| {
            let bytes = bytes_of(values);
            let memory = machine.allocate(ALIGNMENT_BYTES + bytes.len() as u64);
            machine.stream.write(&bytes, behind(&memory)).unwrap();
            memory
        });
        let [d, workspace] = [16, WORKSPACE_BYTES].map(|bytes| machine.allocate(ALIGNMENT_BYTES + bytes));
        let memory = [a, b, bias, residual, d, workspace];
        let [a, b, bias, residual, d, workspace] = memory.each_ref().map(|memory| behind(memory).address());
        let buffers = ProductBuffers { a, b, bias: Some(bias), residual: Some(residual), d, workspace };
        let side =
            |transposed| ProductMatrix { transposed, row_stride: 3, batch_stride: 0, alignment_bytes: 16 };
        let shape = ProductShape {
            element_type: ElementType::Fp32,
            tf32: false,
            m: 2,
            n: 2,
            k: 3,
            batch: 1,
            a: side(false),
            b: side(true),
            alpha: 0.5,
            has_bias: true,
            has_residual: true,
            relu: true,
        };
        Self { buffers, shape, memory, products, machine }
    }

    fn product(&self) -> Gemm {
        Gemm::new(&self.products, self.shape, WORKSPACE_BYTES).unwrap().unwrap()
    }

    fn launch(&self, product: &Gemm) -> Result<(), CudaError> {
        // SAFETY: the memory matches the shape, and is freed after the work, for which the caller
        // waits.
        unsafe { product.launch(&self.machine.stream, &self.buffers) }
    }

    fn output(&self) -> Vec<f32> {
        floats_of(&self.machine.read(behind(&self.memory[4])))
    }

    /// alpha * a * b + bias + residual, with negative values set to 0.
    const OUTPUT: [f32; 4] = [12.5, 0.0, 15.0, 14.5];
}

#[test]
fn product_is_correct_in_stream_order() {
    for seed in SEEDS {
        let setup = Setup::new(seed);
        let fill = setup.machine.kernel("weir_test_fill");
        let product = setup.product();
        // Earlier contents are overwritten, and later work does not affect the result.
        launch_fill(&setup.machine.stream, &fill, setup.memory[4].span(), 0);
        setup.launch(&product).unwrap();
        let output = setup.output();
        launch_fill(&setup.machine.stream, &fill, setup.memory[0].span(), 0);
        assert_eq!(output, Setup::OUTPUT, "seed {seed}");
        setup.machine.stream.synchronize().unwrap();
    }
}

#[test]
fn recorded_product_keeps_its_recorded_addresses() {
    for seed in SEEDS {
        let mut setup = Setup::new(seed);
        let product = setup.product();
        let graph = setup.machine.stream.capture(|_| setup.launch(&product)).unwrap();
        assert_eq!(graph.len().unwrap(), 1);
        let mut graph = graph.instantiate().unwrap();
        // A launch with a different bias in between.
        setup.buffers.bias = setup.buffers.residual;
        setup.launch(&product).unwrap();
        let other = setup.output();
        // SAFETY: as in `launch`.
        unsafe { graph.launch(&setup.machine.stream) }.unwrap();
        assert_eq!((other[0], setup.output()), (3.0, Setup::OUTPUT.to_vec()), "seed {seed}");
    }
}

#[test]
fn unsupported_product_is_none_and_refused_call_is_an_error() {
    let setup = Setup::new(1);
    let made = |shape| Gemm::new(&setup.products, shape, WORKSPACE_BYTES);
    // Less than the size of an element.
    let odd = ProductMatrix { alignment_bytes: 2, ..setup.shape.a };
    assert!(made(ProductShape { a: odd, ..setup.shape }).unwrap().is_none());
    let error = made(ProductShape { element_type: ElementType::Int8, ..setup.shape }).err().unwrap();
    assert!(matches!(error, CudaError::Invalid(_)), "{error}");
    let short = ProductMatrix { row_stride: 1, ..setup.shape.a };
    let error = made(ProductShape { a: short, ..setup.shape }).err().unwrap();
    assert!(error.to_string().contains("CUBLAS_STATUS_INVALID_VALUE"), "{error}");

    let product = setup.product();
    let misaligned = ProductBuffers { a: setup.buffers.a + 4, ..setup.buffers };
    // SAFETY: it is refused.
    let error = unsafe { product.launch(&setup.machine.stream, &misaligned) }.unwrap_err();
    assert!(error.to_string().contains("cublasLtMatmul failed: CUBLAS_STATUS_INVALID_VALUE"), "{error}");
    let lacking = ProductBuffers { bias: None, ..setup.buffers };
    // SAFETY: it is refused.
    let error = unsafe { product.launch(&setup.machine.stream, &lacking) }.unwrap_err();
    assert!(matches!(error, CudaError::Invalid(_)), "{error}");
    assert!(!setup.machine.context.is_lost());
}

#[test]
fn fault_is_reported_as_the_drivers_error() {
    let fake = Fake::new(1);
    fake.set("devices", 2);
    let neighbour = devices(&fake).open(1).unwrap();
    let mut setup = Setup::from_machine(TestDevice::from_fake(fake));
    let product = setup.product();
    // The page after the memory is unmapped.
    setup.buffers.b += 4096;
    setup.launch(&product).unwrap();
    let error = setup.machine.stream.synchronize().unwrap_err();
    assert!(error.is_context_lost() && error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    let error = setup.launch(&product).unwrap_err();
    assert!(error.is_context_lost(), "every call fails from now on: {error}");
    neighbour.synchronize().unwrap();
    drop(neighbour);
}

#[test]
fn library_version_is_read_from_the_library() {
    let machine = TestDevice::new(1);
    for (major, version) in [(12, "12.4.5"), (13, "13.4.5")] {
        assert_eq!(CublasLt::open(&machine.fake.cublas_lt(major)).unwrap().version(), version);
    }
    machine.fake.set("cublaslt_major", 14);
    let error = CublasLt::open(&machine.fake.cublas_lt(13)).err().unwrap();
    assert!(matches!(error, Unavailable::WrongVersion { found: 14, .. }), "{error}");
    // Any other library will do.
    let error = CublasLt::open(machine.fake.path()).err().unwrap();
    assert!(error.to_string().contains("it lacks cublasLtGetProperty"), "{error}");
    machine.fake.set("cublaslt_major", 0).set("cublaslt_create", 1);
    let library = CublasLt::open(&machine.fake.cublas_lt(12)).unwrap();
    let error = Products::new(library, &machine.context).err().unwrap();
    assert!(error.to_string().contains("cublasLtCreate failed: CUBLAS_STATUS_NOT_INITIALIZED"), "{error}");
}
