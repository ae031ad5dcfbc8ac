package io.hopsml;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;

/** Delivery into the folder of a stage on this machine. */
final class FileDelivery implements Delivery {
  private final Path path;
  private final Path part;
  private final FileChannel channel;

  FileDelivery(Path folder, String file) throws IOException {
    path = folder.resolve(file);
    part = Paths.get(path + ".part");
    try { // creates this folder only: without the stage's folder the stage has ended
      Files.createDirectory(path.getParent(), PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
    } catch (FileAlreadyExistsException error) {
      // another partition has created it
    }
    channel = FileChannel.open(part, StandardOpenOption.CREATE, StandardOpenOption.WRITE, StandardOpenOption.TRUNCATE_EXISTING);
  }

  @Override
  public int write(ByteBuffer bytes) throws IOException {
    return channel.write(bytes);
  }

  @Override
  public void finish() throws IOException {
    channel.close();
    Files.move(part, path, StandardCopyOption.ATOMIC_MOVE);
  }

  @Override
  public void close() throws IOException {
    channel.close();
    Files.deleteIfExists(part);
  }
}
