package io.hopsml;

import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** A column of a record batch, in Arrow's buffers. */
abstract class Column implements AutoCloseable {
  private final Growing validity;
  private int nulls;

  Column(BufferAllocator allocator) {
    validity = new Growing(allocator);
  }

  static Column of(DataType type, BufferAllocator allocator) {
    if (type instanceof BooleanType) {
      return new Bits(allocator);
    } else if (type instanceof StringType || type instanceof BinaryType) {
      return new Bytes(allocator, type instanceof StringType);
    } else if (type instanceof ArrayType) {
      return new Lists(allocator, ((ArrayType) type).elementType());
    }
    return new Fixed(allocator, Columns.width(type));
  }

  /** Adds a row's value, as row {@code number} of the batch. */
  final void add(UnsafeRow row, int ordinal, int number) {
    boolean isNull = row.isNullAt(ordinal);
    if (isNull) {
      if (nulls++ == 0) {
        validity.ensure((number >> 3) + 1L);
        Platform.setMemory(validity.address(), (byte) 0xff, (number >> 3) + 1L);
        validity.used = (number >> 3) + 1L;
      }
    }
    if (nulls > 0) {
      validity.setBit(number, !isNull);
    }
    put(row, ordinal, number, isNull);
  }

  abstract void put(UnsafeRow row, int ordinal, int number, boolean isNull);

  abstract int fixedBytes();

  long variableBytes() {
    return 0;
  }

  /** Moves the first {@code rows} rows to {@code buffers}, and begins an empty batch. */
  final void take(int rows, List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
    nodes.add(new ArrowFieldNode(rows, nulls));
    buffers.add(validity.take());
    nulls = 0;
    takeValues(nodes, buffers);
  }

  abstract void takeValues(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers);

  @Override
  public void close() {
    validity.close();
  }

  /** Memory that grows as needed. */
  static final class Growing implements AutoCloseable {
    private static final long LEAST = 4096;

    private final BufferAllocator allocator;
    private ArrowBuf memory;
    private long capacity;
    private long last; // bytes of the previous buffer, which the next one will need as well
    long used;

    Growing(BufferAllocator allocator) {
      this.allocator = allocator;
    }

    long address() {
      return memory.memoryAddress();
    }

    /** Allocates {@code bytes} bytes in all. */
    void ensure(long bytes) {
      if (bytes <= capacity && memory != null) {
        return;
      }
      ArrowBuf larger = allocator.buffer(Math.max(Math.max(bytes, 2 * capacity), Math.max(last, LEAST)));
      if (memory != null) {
        Platform.copyMemory(null, memory.memoryAddress(), null, larger.memoryAddress(), used);
        memory.close();
      }
      memory = larger;
      capacity = larger.capacity();
    }

    /** Returns the address of the next {@code bytes} bytes, which count as used. */
    long next(long bytes) {
      ensure(used + bytes);
      long place = memory.memoryAddress() + used;
      used += bytes;
      return place;
    }

    void setBit(int number, boolean value) {
      long index = number >> 3;
      if (index >= used) {
        Platform.putByte(null, next(1), (byte) 0);
      }
      long place = memory.memoryAddress() + index;
      int bit = 1 << (number & 7);
      int before = Platform.getByte(null, place);
      Platform.putByte(null, place, (byte) (value ? before | bit : before & ~bit));
    }

    ArrowBuf take() {
      ArrowBuf taken = memory == null ? allocator.getEmpty() : memory;
      if (memory != null) {
        taken.writerIndex(used);
        last = used;
      }
      memory = null;
      capacity = used = 0;
      return taken;
    }

    @Override
    public void close() {
      if (memory != null) {
        memory.close();
      }
    }
  }

  /** A column that needs only the buffer of its values. */
  abstract static class Plain extends Column {
    final Growing values;

    Plain(BufferAllocator allocator) {
      super(allocator);
      values = new Growing(allocator);
    }

    @Override
    void takeValues(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
      buffers.add(values.take());
    }

    @Override
    public void close() {
      super.close();
      values.close();
    }
  }

  /** Values of one width, as they are in a row: the lower bytes of a word. */
  static final class Fixed extends Plain {
    private final int width;

    Fixed(BufferAllocator allocator, int width) {
      super(allocator);
      this.width = width;
    }

    @Override
    void put(UnsafeRow row, int ordinal, int number, boolean isNull) {
      long place = values.next(width);
      if (width == 1) {
        Platform.putByte(null, place, isNull ? 0 : row.getByte(ordinal));
      } else if (width == 2) {
        Platform.putShort(null, place, isNull ? 0 : row.getShort(ordinal));
      } else if (width == 4) {
        Platform.putInt(null, place, isNull ? 0 : row.getInt(ordinal)); // of a float, too, as its bits
      } else {
        Platform.putLong(null, place, isNull ? 0 : row.getLong(ordinal));
      }
    }

    @Override
    int fixedBytes() {
      return width;
    }
  }

  /** Booleans. */
  static final class Bits extends Plain {
    Bits(BufferAllocator allocator) {
      super(allocator);
    }

    @Override
    void put(UnsafeRow row, int ordinal, int number, boolean isNull) {
      values.setBit(number, !isNull && row.getBoolean(ordinal));
    }

    @Override
    int fixedBytes() {
      return 1;
    }
  }

  /** A column with offsets: the begin and end of each row's values. */
  abstract static class Variable extends Column {
    private final Growing offsets;

    Variable(BufferAllocator allocator) {
      super(allocator);
      offsets = new Growing(allocator);
    }

    final void endsAt(long end) {
      if (end > Integer.MAX_VALUE) {
        throw new IllegalStateException("a record batch of more than 2 GB in one column");
      }
      if (offsets.used == 0) {
        Platform.putInt(null, offsets.next(4), 0);
      }
      Platform.putInt(null, offsets.next(4), (int) end);
    }

    @Override
    final int fixedBytes() {
      return 4;
    }

    final void takeOffsets(List<ArrowBuf> buffers) {
      buffers.add(offsets.take());
    }

    @Override
    public void close() {
      super.close();
      offsets.close();
    }
  }

  /** Text and bytes. */
  static final class Bytes extends Variable {
    private final Growing content;
    private final boolean isText;

    Bytes(BufferAllocator allocator, boolean isText) {
      super(allocator);
      content = new Growing(allocator);
      this.isText = isText;
    }

    @Override
    void put(UnsafeRow row, int ordinal, int number, boolean isNull) {
      if (!isNull && isText) {
        UTF8String text = row.getUTF8String(ordinal);
        long place = content.next(text.numBytes());
        text.writeToMemory(null, place);
      } else if (!isNull) {
        byte[] bytes = row.getBinary(ordinal);
        Platform.copyMemory(bytes, Platform.BYTE_ARRAY_OFFSET, null, content.next(bytes.length), bytes.length);
      }
      endsAt(content.used);
    }

    @Override
    long variableBytes() {
      return content.used;
    }

    @Override
    void takeValues(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
      takeOffsets(buffers);
      buffers.add(content.take());
    }

    @Override
    public void close() {
      super.close();
      content.close();
    }
  }

  /** Arrays of values of one width, which are contiguous in a row already. */
  static final class Lists extends Variable {
    private final Growing values;
    private final Growing validity;
    private final int width;
    private int elements;
    private int nulls;

    Lists(BufferAllocator allocator, DataType element) {
      super(allocator);
      values = new Growing(allocator);
      validity = new Growing(allocator);
      width = Columns.width(element);
    }

    @Override
    void put(UnsafeRow row, int ordinal, int number, boolean isNull) {
      if (!isNull) {
        add(row.getArray(ordinal));
      }
      endsAt(elements);
    }

    private void add(UnsafeArrayData array) {
      int count = array.numElements();
      long bytes = (long) count * width;
      long head = UnsafeArrayData.calculateHeaderPortionInBytes(count);
      long place = values.next(bytes);
      Platform.copyMemory(array.getBaseObject(), array.getBaseOffset() + head, null, place, bytes);
      boolean hasNulls = false;
      for (long word = 8; word < head && !hasNulls; word += 8) {
        hasNulls = Platform.getLong(array.getBaseObject(), array.getBaseOffset() + word) != 0;
      }
      if (hasNulls || nulls > 0) {
        mark(array, count);
      }
      elements += count;
    }

    private void mark(UnsafeArrayData array, int count) {
      for (int before = 0; nulls == 0 && before < elements; before++) {
        validity.setBit(before, true);
      }
      for (int index = 0; index < count; index++) {
        boolean isNull = array.isNullAt(index);
        nulls += isNull ? 1 : 0;
        validity.setBit(elements + index, !isNull);
      }
    }

    @Override
    long variableBytes() {
      return values.used;
    }

    @Override
    void takeValues(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
      takeOffsets(buffers);
      nodes.add(new ArrowFieldNode(elements, nulls));
      buffers.add(validity.take());
      buffers.add(values.take());
      elements = nulls = 0;
    }

    @Override
    public void close() {
      super.close();
      values.close();
      validity.close();
    }
  }
}
