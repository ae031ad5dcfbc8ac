package io.hopsml;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.DateUnit;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;

/** The rows of one record batch after another, column by column. */
final class Columns implements AutoCloseable {
  private final List<Column> columns = new ArrayList<>();
  private final StructType type;
  private final Schema schema;
  private UnsafeProjection projection; // for rows that are not an UnsafeRow
  private int rows;
  private long fixed; // bytes of a row apart from those of variable length

  Columns(StructType type, BufferAllocator allocator) {
    List<Field> fields = new ArrayList<>();
    for (StructField field : type.fields()) {
      fields.add(field(field.name(), field.dataType()));
      Column column = Column.of(field.dataType(), allocator);
      columns.add(column);
      fixed += column.fixedBytes();
    }
    schema = new Schema(fields);
    this.type = type;
  }

  /** Returns why a DataFrame of this schema cannot be sent by this method; null if it can. */
  static String refusal(StructType type) {
    for (StructField field : type.fields()) {
      DataType kind = field.dataType();
      boolean isPlain = kind instanceof ArrayType ? width(((ArrayType) kind).elementType()) > 0 : arrow(kind) != null;
      if (!isPlain) {
        return "column " + field.name() + " is of type " + kind.simpleString();
      }
    }
    return null;
  }

  /** Returns the bytes of a value of a type of fixed width; 0 for all others. */
  static int width(DataType type) {
    if (type instanceof ByteType) {
      return 1;
    } else if (type instanceof ShortType) {
      return 2;
    } else if (type instanceof IntegerType || type instanceof FloatType || type instanceof DateType) {
      return 4;
    } else if (type instanceof LongType
        || type instanceof DoubleType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType) {
      return 8;
    }
    return 0;
  }

  private static Field field(String name, DataType type) {
    if (type instanceof ArrayType) {
      Field element = field("element", ((ArrayType) type).elementType());
      return new Field(name, FieldType.nullable(ArrowType.List.INSTANCE), Collections.singletonList(element));
    }
    return new Field(name, FieldType.nullable(arrow(type)), null);
  }

  private static ArrowType arrow(DataType type) {
    if (type instanceof BooleanType) {
      return ArrowType.Bool.INSTANCE;
    } else if (type instanceof FloatType) {
      return new ArrowType.FloatingPoint(FloatingPointPrecision.SINGLE);
    } else if (type instanceof DoubleType) {
      return new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE);
    } else if (type instanceof DateType) {
      return new ArrowType.Date(DateUnit.DAY);
    } else if (type instanceof TimestampType) {
      return new ArrowType.Timestamp(TimeUnit.MICROSECOND, "UTC");
    } else if (type instanceof TimestampNTZType) {
      return new ArrowType.Timestamp(TimeUnit.MICROSECOND, null);
    } else if (type instanceof StringType) {
      return ArrowType.Utf8.INSTANCE;
    } else if (type instanceof BinaryType) {
      return ArrowType.Binary.INSTANCE;
    }
    return width(type) > 0 ? new ArrowType.Int(8 * width(type), true) : null;
  }

  Schema schema() {
    return schema;
  }

  void add(InternalRow given) {
    UnsafeRow row = given instanceof UnsafeRow ? (UnsafeRow) given : unsafe(given);
    for (int ordinal = 0; ordinal < columns.size(); ordinal++) {
      columns.get(ordinal).add(row, ordinal, rows);
    }
    rows++;
  }

  private UnsafeRow unsafe(InternalRow row) {
    if (projection == null) {
      projection = UnsafeProjection.create(type);
    }
    return projection.apply(row);
  }

  int rows() {
    return rows;
  }

  long bytes() {
    long found = fixed * rows;
    for (Column column : columns) {
      found += column.variableBytes();
    }
    return found;
  }

  /** Returns the rows added since the last batch; the memory belongs to the caller. */
  ArrowRecordBatch batch() {
    List<ArrowFieldNode> nodes = new ArrayList<>();
    List<ArrowBuf> buffers = new ArrayList<>();
    for (Column column : columns) {
      column.take(rows, nodes, buffers);
    }
    ArrowRecordBatch batch = new ArrowRecordBatch(rows, nodes, buffers);
    buffers.forEach(ArrowBuf::close); // the batch holds references to them
    rows = 0;
    return batch;
  }

  @Override
  public void close() {
    columns.forEach(Column::close);
  }
}
