package io.hopsml;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;

/** A file that is sent to a stage: complete after {@code finish}, discarded if it is closed before. */
interface Delivery extends Closeable {
  int write(ByteBuffer bytes) throws IOException;

  void finish() throws IOException;

  /** For writers that close their channel. */
  default WritableByteChannel channel() {
    return new WritableByteChannel() {
      @Override
      public int write(ByteBuffer bytes) throws IOException {
        return Delivery.this.write(bytes);
      }

      @Override
      public boolean isOpen() {
        return true;
      }

      @Override
      public void close() {}
    };
  }
}
