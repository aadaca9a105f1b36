//! Tensors in host memory, or left in the memory of the device that computed them.
//!
//! A run whose outputs [may stay](crate::RunRequest::may_stay) leaves them in its device's memory
//! as [`DeviceTensor`]s. A run on the same device, or on a sibling (a device that can read the
//! other device's memory), reads such a tensor in place. Every other reader uses a [copy on the
//! host](DeviceTensor::to_host), which is made once.
//!
//! A tensor can be moved to a sibling with more room, unless a reader [holds it in
//! place](DeviceTensor::stay). A tensor ends when its last handle drops, or when the device is
//! lost; later readers then get [`TensorLost`](InferenceError::TensorLost).

use crate::error::InferenceError;
use crate::meter::{Meter, Used};
use crate::tensor::Tensor;
use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;
use weir_device::{Buffer, Device};
use weir_types::{ElementType, Shape};

/// A tensor on the host or on a device. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Value {
    /// In host memory.
    Host(Tensor),
    /// In the memory of the device that computed it, or of a sibling.
    Device(DeviceTensor),
}

/// A tensor in the memory of a device. Cheap to clone; dropping the last clone releases the device
/// memory.
#[derive(Clone)]
pub struct DeviceTensor(Arc<ValueInner>);

/// A reference to a tensor that does not keep it alive.
#[derive(Clone)]
pub struct WeakDeviceTensor(Weak<ValueInner>);

/// Holds a tensor in place: the tensor is not moved until this guard drops.
pub struct DeviceHandle {
    tensor: Arc<ValueInner>,
    memory: Arc<dyn DeviceMemory>,
    number: u64,
}

/// Memory of a device that keeps tensors, as one tenant sees it. Each tensor has a number that is
/// never reused.
pub trait DeviceMemory: Any + Send + Sync {
    /// Copies a tensor of `bytes` bytes to host memory. Blocks.
    fn fetch(&self, number: u64, bytes: u64) -> Result<Buffer, InferenceError>;

    /// Releases a tensor of `bytes` bytes after its last handle dropped. Does not block.
    fn let_go(&self, number: u64, bytes: u64);
}

struct ValueInner {
    element_type: ElementType,
    shape: Shape,
    bytes: u64,
    place: Mutex<TensorPlace>,
    /// The copy in host memory, after its first use.
    fetched: Mutex<Option<Tensor>>,
}

/// Current place of the tensor.
struct TensorPlace {
    memory: Arc<dyn DeviceMemory>,
    number: u64,
    since: Instant,
    /// The device and the meter to which the tensor's memory is charged.
    bearer: Option<(Device, Meter)>,
    /// Number of guards that hold the tensor in place.
    stays: usize,
}

impl Value {
    /// Type of every element.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        match self {
            Self::Host(tensor) => tensor.element_type(),
            Self::Device(tensor) => tensor.element_type(),
        }
    }

    /// Size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(tensor) => tensor.shape(),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Host(tensor) => tensor.data().len() as u64,
            Self::Device(tensor) => tensor.bytes(),
        }
    }

    /// The tensor, if it is on a device.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceTensor> {
        match self {
            Self::Host(_) => None,
            Self::Device(tensor) => Some(tensor),
        }
    }

    /// The tensor in host memory. Blocks if it must be copied from a device.
    pub fn to_host(&self) -> Result<Tensor, InferenceError> {
        match self {
            Self::Host(tensor) => Ok(tensor.clone()),
            Self::Device(tensor) => tensor.to_host(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Host(tensor)
    }
}

impl DeviceTensor {
    /// The tensor with this `number` in `memory`; `bytes` is the length that its type and shape
    /// imply.
    pub fn new(
        memory: Arc<dyn DeviceMemory>,
        number: u64,
        element_type: ElementType,
        shape: Shape,
        bytes: u64,
    ) -> Self {
        let place = TensorPlace { memory, number, since: Instant::now(), bearer: None, stays: 0 };
        let place = Mutex::new(place);
        let fetched = Mutex::default();
        Self(Arc::new(ValueInner { element_type, shape, bytes, place, fetched }))
    }

    /// Type of every element.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        self.0.element_type
    }

    /// Size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Returns the tensor in host memory. The first call copies it; later calls share the copy.
    /// Blocks during the copy, so call it only from device threads or other threads that may block.
    pub fn to_host(&self) -> Result<Tensor, InferenceError> {
        let ValueInner { element_type, shape, bytes, fetched, .. } = &*self.0;
        let mut fetched = fetched.lock();
        if let Some(tensor) = &*fetched {
            return Ok(tensor.clone());
        }
        let stay = self.stay();
        let data = stay.memory.fetch(stay.number, *bytes)?;
        let tensor = Tensor::new(*element_type, shape.clone(), data)?;
        Ok(fetched.insert(tensor).clone())
    }

    /// Holds the tensor in place.
    #[must_use]
    pub fn stay(&self) -> DeviceHandle {
        let mut place = self.0.place();
        place.stays += 1;
        DeviceHandle { tensor: self.0.clone(), memory: place.memory.clone(), number: place.number }
    }

    /// Records that a copy of the tensor in other memory, of `device`, replaces this one. Returns
    /// `false`, without a change, if a guard holds the tensor in place.
    #[must_use]
    pub fn move_to(&self, memory: &Arc<dyn DeviceMemory>, number: u64, device: Device) -> bool {
        let mut place = self.0.place();
        if place.stays > 0 {
            return false;
        }
        place.leave(self.0.bytes);
        let bearer = place.bearer.take().map(|(_, meter)| (device, meter));
        *place = TensorPlace { memory: memory.clone(), number, since: Instant::now(), bearer, stays: 0 };
        true
    }

    /// A reference that does not keep the tensor alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakDeviceTensor {
        WeakDeviceTensor(Arc::downgrade(&self.0))
    }

    /// Charges the tensor's memory on `device` to `meter`, from the time when a run left the tensor
    /// there.
    pub(crate) fn charge(&self, device: Device, meter: &Meter) {
        // The first meter keeps the charge.
        self.0.place().bearer.get_or_insert_with(|| (device, meter.clone()));
    }
}
impl WeakDeviceTensor {
    /// The tensor, unless its last handle has dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<DeviceTensor> {
        self.0.upgrade().map(DeviceTensor)
    }
}
impl DeviceHandle {
    /// The memory that holds the tensor, if it is an `M`.
    #[must_use]
    pub fn memory<M: DeviceMemory>(&self) -> Option<&M> {
        let memory: &dyn Any = &*self.memory;
        memory.downcast_ref()
    }

    /// The tensor's number in that memory.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        self.tensor.place().stays -= 1;
    }
}

impl ValueInner {
    fn place(&self) -> MutexGuard<'_, TensorPlace> {
        self.place.lock()
    }
}

impl TensorPlace {
    /// Releases the tensor's `bytes`, and charges the time for which they were held.
    fn leave(&self, bytes: u64) {
        self.memory.let_go(self.number, bytes);
        if let Some((device, meter)) = &self.bearer {
            let resident_byte_ns = u128::from(bytes) * self.since.elapsed().as_nanos();
            meter.add(*device, &Used { resident_byte_ns, ..Used::default() });
        }
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ValueInner { element_type, shape, .. } = &*self.0;
        let number = self.0.place().number;
        write!(f, "DeviceTensor({number}: {element_type}{shape})")
    }
}

impl Drop for ValueInner {
    fn drop(&mut self) {
        self.place().leave(self.bytes);
    }
}

/// Counters of the tensors left on a device, from its backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Tensors currently on the device.
    pub kept: u64,
    /// Bytes of these tensors.
    pub kept_bytes: u64,
    /// Bytes that runs on the device read in place.
    pub on_device_bytes: u64,
    /// Bytes that runs on other devices read in place.
    pub by_sibling_bytes: u64,
    /// Bytes moved to a sibling's memory, to make room.
    pub spilled_to_sibling_bytes: u64,
    /// Bytes moved to the host, to make room.
    pub spilled_to_host_bytes: u64,
    /// Bytes that went through the host after all: to the node, which needed them, or to runs,
    /// because the device had no room.
    pub through_host_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use weir_device::Arena;

    const GPU: Device = Device::Cuda { ordinal: 0 };

    /// Counts its calls.
    #[derive(Default)]
    struct Memory {
        fetched: AtomicU64,
        let_go: AtomicU64,
    }

    impl DeviceMemory for Memory {
        fn fetch(&self, number: u64, bytes: u64) -> Result<Buffer, InferenceError> {
            self.fetched.fetch_add(1, Ordering::Relaxed);
            let len = usize::try_from(bytes).unwrap();
            Ok(Arena::new(1 << 20).copy_of(&vec![u8::try_from(number).unwrap(); len])?)
        }

        fn let_go(&self, _: u64, bytes: u64) {
            self.let_go.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn tensor_is_fetched_once_and_charged_until_last_handle_drops() {
        let memory = Arc::new(Memory::default());
        let meter = Meter::default();
        let shape = Shape::new(&[2, 3]).unwrap();
        let tensor = DeviceTensor::new(memory.clone(), 7, ElementType::Uint8, shape, 6);
        tensor.charge(GPU, &meter);
        tensor.charge(Device::Cpu, &meter);
        let other = Value::Device(tensor.clone());
        assert_eq!(tensor.to_host().unwrap(), other.to_host().unwrap());
        assert_eq!(&**other.to_host().unwrap().data(), [7; 6]);
        assert_eq!(memory.fetched.load(Ordering::Relaxed), 1);
        let stay = tensor.stay();
        assert!(stay.memory::<Memory>().is_some() && stay.number() == 7);
        drop(stay);
        drop(tensor);
        assert_eq!((memory.let_go.load(Ordering::Relaxed), meter.used().len()), (0, 0));
        drop(other);
        assert_eq!(memory.let_go.load(Ordering::Relaxed), 6);
        let used = meter.used();
        assert!(matches!(used[..], [(GPU, Used { resident_byte_ns: 1.., runs: 0, .. })]), "{used:?}");
    }

    #[test]
    fn tensor_moves_only_while_not_held_in_place() {
        const SIBLING: Device = Device::Cuda { ordinal: 1 };
        let home = Arc::new(Memory::default());
        let other = Arc::new(Memory::default());
        let meter = Meter::default();
        let shape = Shape::new(&[6]).unwrap();
        let tensor = DeviceTensor::new(home.clone(), 7, ElementType::Uint8, shape, 6);
        tensor.charge(GPU, &meter);
        let known = tensor.downgrade();
        let there: Arc<dyn DeviceMemory> = other.clone();
        let stay = tensor.stay();
        assert!(!tensor.move_to(&there, 9, SIBLING));
        drop(stay);
        assert!(known.upgrade().unwrap().move_to(&there, 9, SIBLING));
        assert_eq!(home.let_go.load(Ordering::Relaxed), 6, "it is there no more");
        assert_eq!(&**tensor.to_host().unwrap().data(), [9; 6], "it is read where it is now");
        assert_eq!((home.fetched.load(Ordering::Relaxed), other.fetched.load(Ordering::Relaxed)), (0, 1));
        drop(tensor);
        assert!(known.upgrade().is_none());
        assert_eq!(other.let_go.load(Ordering::Relaxed), 6);
        let used = meter.used();
        let borne = |device| used.iter().any(|(of, used)| *of == device && used.resident_byte_ns > 0);
        assert!(borne(GPU) && borne(SIBLING), "each for as long as it was there: {used:?}");
    }
}
