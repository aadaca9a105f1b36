package weir

import "time"

// GetObject reads the tensor stored under name. The function's manifest lists the names it may
// read:
//
//	[function.objects]
//	read = ["thresholds"]
//	write = ["session-*"]
//
// It fails with [NotFound] if the object does not exist or has expired, and with [NotGranted].
func GetObject(name string) (*Tensor, error) {
	return tensor(getObject(name))
}

// PutObject stores a copy of a tensor under name, replacing an existing object. ttl is its lifetime
// in whole milliseconds; 0 selects the node's default. The object is durable when PutObject
// returns. PutObject fails with [ResourceExhausted] if there is no space for the object.
func PutObject(name string, value *Tensor, ttl time.Duration) error {
	if ttl < 0 || ttl > 0 && ttl < time.Millisecond {
		return Errorf(InvalidArgument, "an object is kept for a millisecond at least, and not for %v", ttl)
	}
	return putObject(name, value.on, uint64(ttl.Milliseconds()))
}

// DeleteObject deletes the object name.
func DeleteObject(name string) error { return deleteObject(name) }
