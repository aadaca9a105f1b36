//! Tensors wherever they are: in the node's memory, or left in that of the device that gave them.
//!
//! A run whose outputs [may stay](crate::RunRequest::may_stay) leaves them in its device's memory, as [`DeviceTensor`]s. A run on the same device takes
//! such a tensor from there, and one on a sibling, a device that reads the other's memory, does so, too; whoever else needs its bytes has them [brought to the host](DeviceTensor::to_host), once.
//! A tensor may be moved to a sibling that has more room, while nobody [holds it where it is](DeviceTensor::stay). What ends one: its last
//! handle drops; or the device is lost, and whoever wants it then is told [`TensorLost`](InferenceError::TensorLost).

use crate::error::InferenceError;
use crate::meter::{Meter, Used};
use crate::tensor::Tensor;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;
use weir_device::{Buffer, Device};
use weir_types::{ElementType, Shape};

/// A tensor, wherever it is. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Value {
    /// In the node's memory.
    Host(Tensor),
    /// In the memory of the device that gave it, or of a sibling of that.
    Device(DeviceTensor),
}

/// A tensor in the memory of a device. Cheap to clone: with the last clone the device lets go of it.
#[derive(Clone)]
pub struct DeviceTensor(Arc<Inner>);

/// A tensor that others know, for as long as somebody has it.
#[derive(Clone)]
pub(crate) struct WeakDeviceTensor(Weak<Inner>);

/// Where a tensor is: it is not moved before this drops.
pub(crate) struct Stay {
    tensor: Arc<Inner>,
    memory: Arc<dyn DeviceMemory>,
    number: u64,
}

/// The memory of a device that tensors stay in, as one tenant sees it. Tensors there are known by numbers that are not used twice.
pub trait DeviceMemory: Any + Send + Sync {
    /// Copy a tensor of so many bytes to the node's memory. Blocks.
    fn fetch(&self, number: u64, bytes: u64) -> Result<Buffer, InferenceError>;

    /// Nobody has a tensor of so many bytes any more. Does not block.
    fn let_go(&self, number: u64, bytes: u64);
}

struct Inner {
    element_type: ElementType,
    shape: Shape,
    bytes: u64,
    place: Mutex<Place>,
    /// Itself, once somebody has needed it here.
    fetched: Mutex<Option<Tensor>>,
}

/// Where it is now.
struct Place {
    memory: Arc<dyn DeviceMemory>,
    number: u64,
    since: Instant,
    /// Who bears the memory that it takes, and of which device.
    bearer: Option<(Device, Meter)>,
    /// How many hold it there.
    stays: usize,
}

impl Value {
    /// The type of every element.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        match self {
            Self::Host(tensor) => tensor.element_type(),
            Self::Device(tensor) => tensor.element_type(),
        }
    }

    /// The size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(tensor) => tensor.shape(),
        }
    }

    /// How many bytes there are of it.
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

    /// The tensor in the node's memory. Blocks where it has to be brought there.
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
    /// A tensor that `memory` has by that number, with as many bytes as its type and shape say.
    pub fn new(
        memory: Arc<dyn DeviceMemory>,
        number: u64,
        element_type: ElementType,
        shape: Shape,
        bytes: u64,
    ) -> Self {
        let place = Place { memory, number, since: Instant::now(), bearer: None, stays: 0 };
        let (place, fetched) = (Mutex::new(place), Mutex::default());
        Self(Arc::new(Inner { element_type, shape, bytes, place, fetched }))
    }

    /// The type of every element.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        self.0.element_type
    }

    /// The size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// How many bytes there are of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The tensor in the node's memory, where it is brought once, however many ask. Blocks: for device threads, and those that may wait.
    pub fn to_host(&self) -> Result<Tensor, InferenceError> {
        let Inner { element_type, shape, bytes, fetched, .. } = &*self.0;
        let mut fetched = fetched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = &*fetched {
            return Ok(tensor.clone());
        }
        let stay = self.stay();
        let data = stay.memory.fetch(stay.number, *bytes)?;
        let tensor = Tensor::new(*element_type, shape.clone(), data)?;
        Ok(fetched.insert(tensor).clone())
    }

    /// Hold it where it is.
    pub(crate) fn stay(&self) -> Stay {
        let mut place = self.0.place();
        place.stays += 1;
        Stay { tensor: Arc::clone(&self.0), memory: Arc::clone(&place.memory), number: place.number }
    }

    /// There is a copy of it in other memory, of `device`: that is where it is from now on. Not if somebody holds it where it is; gives whether it was moved.
    pub(crate) fn move_to(&self, memory: &Arc<dyn DeviceMemory>, number: u64, device: Device) -> bool {
        let mut place = self.0.place();
        if place.stays > 0 {
            return false;
        }
        place.leave(self.0.bytes);
        let bearer = place.bearer.take().map(|(_, meter)| (device, meter));
        *place = Place { memory: Arc::clone(memory), number, since: Instant::now(), bearer, stays: 0 };
        true
    }

    /// To know it by, without keeping it.
    pub(crate) fn downgrade(&self) -> WeakDeviceTensor {
        WeakDeviceTensor(Arc::downgrade(&self.0))
    }

    /// Have `meter` bear the memory that it takes, which is of `device`, from when it was left there to its end.
    pub(crate) fn charge(&self, device: Device, meter: &Meter) {
        // Whoever bears it already goes on to.
        self.0.place().bearer.get_or_insert_with(|| (device, meter.clone()));
    }
}

impl WeakDeviceTensor {
    pub(crate) fn upgrade(&self) -> Option<DeviceTensor> {
        self.0.upgrade().map(DeviceTensor)
    }
}

impl Stay {
    /// The memory that has it, if that is a `M`.
    pub(crate) fn memory<M: DeviceMemory>(&self) -> Option<&M> {
        let memory: &dyn Any = &*self.memory;
        memory.downcast_ref()
    }

    /// What that knows it by.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.tensor.place().stays -= 1;
    }
}

impl Inner {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// So many bytes are there no more.
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
        let Inner { element_type, shape, .. } = &*self.0;
        let number = self.0.place().number;
        write!(f, "DeviceTensor({number}: {element_type}{shape})")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.place().leave(self.bytes);
    }
}

/// Tensors that were left on a device, as its backend counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Tensors that are there now.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Bytes that runs there have read where they were.
    pub on_device_bytes: u64,
    /// Bytes that runs on other devices have read where they were.
    pub by_sibling_bytes: u64,
    /// Bytes that were moved to a sibling's memory, to make room.
    pub spilled_to_sibling_bytes: u64,
    /// Bytes that were moved to the host, to make room.
    pub spilled_to_host_bytes: u64,
    /// Bytes that went over the host after all: to the node, since it needed them; or to runs, since there was no room for them on the device.
    pub through_host_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use weir_device::Arena;

    const GPU: Device = Device::Cuda { ordinal: 0 };

    /// Counts what it is asked.
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
    fn a_tensor_is_brought_once_and_borne_until_its_last_handle_drops() {
        let (memory, meter) = (Arc::new(Memory::default()), Meter::default());
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
    fn a_tensor_moves_while_nobody_holds_it_where_it_is() {
        const SIBLING: Device = Device::Cuda { ordinal: 1 };
        let (home, other, meter) =
            (Arc::new(Memory::default()), Arc::new(Memory::default()), Meter::default());
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
